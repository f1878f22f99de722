package gpu

import (
	"slices"
	"strconv"
	"strings"
)

// Version is that of a driver, or a compute capability: numbers with dots between. It ends
// before what is no number: "615.43-beta" is 615. Empty: not known, or none is asked for.
type Version string

// AtLeast reports whether v is not older than want. One that is not known is older than any;
// where none is asked for, any will do. What is left out is 0.
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
