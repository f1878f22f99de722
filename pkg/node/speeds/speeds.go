package speeds

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Tables map globs of model names to speeds. A model gets its speed from the first table with a matching glob, and in
// this table from the longest matching glob.
type Tables []map[string]int

// maxSpeed bounds a speed, so that comparisons cannot overflow.
const maxSpeed = 1 << 30

// Default returns the built-in table, in per cent of an A100. The numbers are half-precision throughput from
// NVIDIA's data sheets, with tensor cores if present and without sparsity, for one GPU of a board with several.
// H200 and similar models get 10% more than the H100 for their faster memory.
func Default() Tables {
	return Tables{{
		"*K80*": 1, "*M40*": 2, "*M60*": 2,
		"*P4": 2, "*P40*": 4, "*P100*": 6, "*GTX 10*": 3,
		"*V100*": 40, "*TITAN V*": 35, "*TITAN RTX*": 42,
		"*T4": 21, "*T4G*": 21, "*Quadro RTX*": 42, "*RTX 20*": 17,
		"A2": 6, "A10": 40, "A10G*": 22, "A16*": 6, "A30*": 53, "A40*": 48, "A100-*": 100, "A800-*": 100,
		"*RTX A4*": 25, "*RTX A5*": 36, "*RTX A6*": 50, "*RTX 30*": 23,
		"L4": 39, "L20*": 38, "L40": 58, "L40S*": 116, "*RTX 40*": 53, "*Ada Generation": 117,
		"H20*": 47, "H100*": 317, "H100 PCIe*": 242, "H100 NVL*": 268, "H800*": 317, "H200*": 349, "GH200*": 349,
		"B200*": 721, "GB200*": 801, "B300*": 801, "GB300*": 801, "*RTX 50*": 67, "*Blackwell*": 160,
	}}
}

// Read returns the table of a file, in YAML or JSON, followed by the default table.
func Read(file string) (Tables, error) {
	if file == "" {
		return Default(), nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the speeds of GPUs: %w", err)
	}
	var table map[string]int
	if err := yaml.UnmarshalStrict(text, &table); err != nil {
		return nil, fmt.Errorf("%s: want lines like \"H100*: 317\": %w", file, err)
	}
	for glob, speed := range table {
		if _, err := path.Match(glob, ""); err != nil || glob == "" || strings.HasPrefix(glob, "!") {
			return nil, fmt.Errorf("%s: %q is not a glob of a model's name", file, glob)
		}
		if speed < 1 || speed > maxSpeed {
			return nil, fmt.Errorf("%s: the speed of %q is %d, want 1 to %d", file, glob, speed, maxSpeed)
		}
	}
	return append(Tables{table}, Default()...), nil
}

// Speed returns the speed of a model, or 0 if no table matches it.
func (s Tables) Speed(model string) int {
	for _, table := range s {
		var globs []string
		for glob := range table {
			if placement.NewGlobs(glob).MatchModel(model) {
				globs = append(globs, glob)
			}
		}
		if len(globs) > 0 {
			return table[slices.MaxFunc(globs, func(a, b string) int {
				return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
			})]
		}
	}
	return 0
}
