package doctor

import (
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// allBeta is the gate that sets all beta features without their own setting.
const allBeta = "AllBeta"

// disabledGates returns the given feature gates of Kubernetes that the commands of a pod's containers turn off.
// All given gates must be of beta features, because disabledGates also reads AllBeta. It does not return a gate
// that no command sets.
func disabledGates(spec v1.PodSpec, gates ...string) (disabled []string) {
	for _, c := range spec.Containers {
		set := parseGates(c)
		for _, gate := range gates {
			on, named := set[gate]
			if !named {
				on, named = set[allBeta]
			}
			if named && !on && !slices.Contains(disabled, gate) {
				disabled = append(disabled, gate)
			}
		}
	}
	return disabled
}

// parseGates returns the gates that a container's command sets.
func parseGates(c v1.Container) map[string]bool {
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
