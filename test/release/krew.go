package release

import (
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

// homepage is where releases are downloaded from.
const homepage = "https://github.com/gpumem/gpumem"

// krewPlatform is one archive of the command.
type krewPlatform struct {
	Selector selector `json:"selector"`
	URI      string   `json:"uri"`
	Sum      string   `json:"sha256"`
	Bin      string   `json:"bin"`
}

type selector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// writeKrew writes a manifest for krew, which calls the command by its name with
// a dash: kubectl inspect-gpumem.
func writeKrew(name, version string, platforms []krewPlatform) error {
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
		"kind":       "Plugin",
		"metadata":   map[string]any{"name": "inspect-gpumem"},
		"spec": map[string]any{
			"version":          "v" + strings.TrimPrefix(version, "v"),
			"homepage":         homepage,
			"shortDescription": "Show GPU memory by node, GPU and pod",
			"description":      "Shows which pods hold how much memory of which GPU, why pods wait, and what is\nwrong with an installation of gpumem.\n",
			"caveats":          "It needs the right to list nodes and pods, and gpumem in the cluster.\n",
			"platforms":        platforms,
		},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}
