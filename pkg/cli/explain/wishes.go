package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/placement"
)

// wishes says what else a pod asks of its GPUs.
func wishes(req placement.Request) (s string) {
	if globs := slices.Concat(req.Models.Texts(), req.UUIDs.Texts()); len(globs) > 0 {
		s += " matching " + strings.Join(globs, ",")
	}
	switch req.Preference {
	case placement.Fastest:
		s += ", of the fastest model that has room"
	case placement.Cheapest:
		s += ", of the slowest model that has room"
	}
	if req.Group.Name != "" {
		s += fmt.Sprintf(", beside pods of gpu-group %q if there is room", req.Group.Name)
	}
	if req.ExclusiveGroup.Name != "" {
		s += fmt.Sprintf(", apart from pods of exclusive-group %q", req.ExclusiveGroup.Name)
	}
	if req.Enforcement != "" {
		s += ", at the level " + string(req.Enforcement) + " or a stronger one"
	}
	return s
}
