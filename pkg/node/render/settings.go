package render

import "strings"

// settings lists the settings that a framework reads under two names: the variable that gpumem sets (name), and a
// second name (other). JAX fails if both are set. PyTorch reads one of the two, depending on the release.
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

// UnknownValue stands for a value with references to variables or objects, which only the kubelet can resolve.
const UnknownValue = "$()"

// ResolveNames returns new values for gpumem's variables (`env`) if the container also sets their second names
// (`seconds`). The container's value takes precedence. If it is a list, ResolveNames returns it with gpumem's option
// added, or unchanged if it contains that option. For any other value, and for an unknown list, it returns "", which
// frameworks read like an absent variable.
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
