package render

import "strings"

// settings lists the variables of frameworks that gpumem sets and that have a second name. JAX fails if both
// are set. PyTorch reads one of the two, depending on the release.
var settings = []struct {
	name, other string
	list        string // option that gpumem sets, if the value is a list; empty for a single value
}{
	{name: "XLA_PYTHON_CLIENT_MEM_FRACTION", other: "XLA_CLIENT_MEM_FRACTION"},
	{name: "PYTORCH_ALLOC_CONF", other: "PYTORCH_CUDA_ALLOC_CONF", list: "per_process_memory_fraction:"},
}

// IsSecondName reports whether a variable is the second name of a variable that gpumem sets.
func IsSecondName(name string) bool {
	for _, s := range settings {
		if s.other == name {
			return true
		}
	}
	return false
}

// UnknownValue stands for a value with references, which only the kubelet can resolve.
const UnknownValue = "$()"

// ResolveNames returns new values of gpumem's variables (`env`) whose second name the container sets
// (`seconds`), because the second name takes precedence. A list without gpumem's option is returned with the
// option, and a list that contains it is returned unchanged. Otherwise the new value is "", which frameworks
// read like an absent variable.
func ResolveNames(env, seconds map[string]string) map[string]string {
	changed := make(map[string]string)
	for _, s := range settings {
		ours, other := env[s.name], seconds[s.other]
		switch {
		case ours == "" || other == "" || ours == other || s.list != "" && strings.HasPrefix(ours, other+","):
		case s.list == "" || other == UnknownValue:
			changed[s.name] = ""
		case strings.Contains(other, s.list):
			changed[s.name] = other
		default:
			changed[s.name] = other + "," + ours
		}
	}
	return changed
}
