package gates

import (
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// allBeta sets all gates of features in beta that are not named themselves.
const allBeta = "AllBeta"

// Off returns those of some gates, of features in beta, that containers of a pod turn off.
func Off(spec v1.PodSpec, gates ...string) (off []string) {
	for _, c := range spec.Containers {
		set := read(c)
		for _, gate := range gates {
			on, named := set[gate]
			if !named {
				on, named = set[allBeta]
			}
			if named && !on && !slices.Contains(off, gate) {
				off = append(off, gate)
			}
		}
	}
	return off
}

// read returns the gates that a container's command sets.
func read(c v1.Container) map[string]bool {
	set := make(map[string]bool)
	for _, arg := range slices.Concat(c.Command, c.Args) {
		list, ok := strings.CutPrefix(arg, "--feature-gates=")
		if !ok {
			continue
		}
		for one := range strings.SplitSeq(list, ",") {
			name, value, _ := strings.Cut(one, "=")
			if on, err := strconv.ParseBool(value); err == nil {
				set[strings.TrimSpace(name)] = on
			}
		}
	}
	return set
}
