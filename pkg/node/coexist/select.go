package coexist

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// A Selector says which GPUs of a node are gpumem's. The zero value takes all.
type Selector struct {
	wanted, unwanted []string
}

// ParseSelector reads globs of UUIDs and indexes with commas between them: "0,1",
// "GPU-4cc89e34*", "!3". A leading ! excludes. Without any that does not, all
// others are selected.
func ParseSelector(s string) (Selector, error) {
	var out Selector
	for glob := range strings.SplitSeq(s, ",") {
		if glob = strings.TrimSpace(glob); glob == "" {
			continue
		}
		bare, excludes := strings.CutPrefix(glob, "!")
		if _, err := path.Match(bare, ""); err != nil || bare == "" {
			return Selector{}, fmt.Errorf("%q: want UUIDs or indexes of GPUs, with * and ? as wildcards and ! before those to leave out, and commas between them", s)
		}
		if excludes {
			out.unwanted = append(out.unwanted, bare)
		} else {
			out.wanted = append(out.wanted, bare)
		}
	}
	return out, nil
}

// Selects reports whether a GPU is gpumem's. A MIG instance is selected by its GPU's UUID, too.
func (s Selector) Selects(d gpu.Device) bool {
	matches := func(glob string) bool {
		byUUID, _ := path.Match(glob, string(d.UUID)) // it was tried when it was read
		byIndex, _ := path.Match(glob, strconv.Itoa(d.Index))
		byParent, _ := path.Match(glob, string(d.Parent))
		return byUUID || byIndex || byParent && d.Parent != ""
	}
	return !slices.ContainsFunc(s.unwanted, matches) && (len(s.wanted) == 0 || slices.ContainsFunc(s.wanted, matches))
}
