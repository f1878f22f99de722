package doctor

import (
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// allBeta is the gate that sets all beta features without their own setting.
const allBeta = "AllBeta"

// gatesOff returns those gates of Kubernetes that the commands of a pod's containers turn off. All gates
// must be of beta features. If no command sets a gate, the default applies, and gatesOff does not return
// it.
func gatesOff(spec v1.PodSpec, gates ...string) (off []string) {
	for _, c := range spec.Containers {
		set := gatesOf(c)
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

// gatesOf returns the gates that a container's command sets.
func gatesOf(c v1.Container) map[string]bool {
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
