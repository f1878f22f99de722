package gpu

import (
	"slices"
	"strconv"
	"strings"
)

// Version is a driver version or a compute capability: numbers separated by dots. Parsing stops at the
// first part that is not a number: "615.43-beta" equals "615". The empty version is unknown;
// as a minimum, it accepts any version.
type Version string

// AtLeast reports whether v is want or newer. An unknown version is older than any other. Missing
// parts count as 0.
func (v Version) AtLeast(want Version) bool {
	if want == "" {
		return true
	}
	has, wanted := v.numbers(), want.numbers()
	if len(has) == 0 {
		return false
	}
	for len(has) < len(wanted) {
		has = append(has, 0)
	}
	return slices.Compare(has, wanted) >= 0
}

func (v Version) numbers() (out []int) {
	for part := range strings.SplitSeq(strings.TrimSpace(string(v)), ".") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			break
		}
		out = append(out, n)
	}
	return out
}
