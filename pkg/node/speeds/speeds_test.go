package speeds

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDefault(t *testing.T) {
	// NVML's model names, slowest first.
	models := []string{
		"Tesla K80", "Tesla P4", "Tesla P40", "Tesla P100-PCIE-16GB", "Tesla T4", "NVIDIA A10G", "NVIDIA L4", "Tesla V100-SXM2-16GB",
		"NVIDIA H20", "NVIDIA A40", "NVIDIA A30", "NVIDIA L40", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S", "NVIDIA H100 PCIe",
		"NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA B200", "NVIDIA GB200",
	}
	speeds, err := Read("")
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for _, m := range models {
		got := speeds.Speed(m)
		if got <= last {
			t.Errorf("%s has speed %d, want more than %d", m, got, last)
		}
		last = got
	}
	for model, want := range map[string]int{
		"NVIDIA A100-PCIE-40GB": 100, "NVIDIA A10": 40, "NVIDIA A2": 6, "NVIDIA L40": 58, "Quadro RTX 4000": 42,
		"NVIDIA GeForce RTX 4090": 53, "NVIDIA RTX 6000 Ada Generation": 117, "NVIDIA A1000": 0, "some other": 0, "": 0,
	} {
		if got := speeds.Speed(model); got != want {
			t.Errorf("%q has speed %d, want %d", model, got, want)
		}
	}
}

func TestRead(t *testing.T) {
	tests := map[string]struct {
		text    string
		want    map[string]int
		wantErr string
	}{
		"one's own go before the defaults": {
			text: "A100*: 7\nNext*: 9000\n", want: map[string]int{"NVIDIA A100-SXM4-80GB": 7, "Next GPU": 9000, "Tesla T4": 21},
		},
		"a short glob of one's own too":    {text: "'*': 5", want: map[string]int{"NVIDIA A100-SXM4-80GB": 5, "Tesla T4": 5}},
		"the longest glob counts":          {text: "'*': 5\n'*T4': 6\n'T*': 7", want: map[string]int{"Tesla T4": 6, "TITAN V": 7}},
		"the last of equally long globs":   {text: "'*esla T4': 6\n'Tesla T4': 7", want: map[string]int{"Tesla T4": 7}},
		"JSON":                             {text: `{"Tesla T4": 6}`, want: map[string]int{"Tesla T4": 6}},
		"nothing":                          {text: "", want: map[string]int{"Tesla T4": 21}},
		"no table":                         {text: "fast", wantErr: `want lines like "H100*: 317"`},
		"a speed that is a word":           {text: "T4: slow", wantErr: `want lines like "H100*: 317"`},
		"a speed of nothing":               {text: "T4: 0", wantErr: `the speed of "T4" is 0, want 1 to`},
		"a speed below nothing":            {text: "T4: -1", wantErr: `the speed of "T4" is -1`},
		"a model twice":                    {text: "T4: 1\nT4: 2", wantErr: "already"},
		"a glob that is none":              {text: "'[T4': 1", wantErr: `"[T4" is not a glob`},
		"an exclusion":                     {text: "'!T4': 1", wantErr: `"!T4" is not a glob`},
		"a model without a name":           {text: "'': 1", wantErr: `"" is not a glob`},
		"the lowest and the highest speed": {text: "T4: 1\nA2: 1073741824", want: map[string]int{"Tesla T4": 1, "NVIDIA A2": 1 << 30}},
		"a speed beyond the highest":       {text: "T4: 1073741825", wantErr: "want 1 to"},
		"a speed beyond all comparisons":   {text: "T4: 9223372036854775807", wantErr: "want 1 to"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "speeds.yaml")
			if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			speeds, err := Read(file)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) || !strings.Contains(err.Error(), file) {
					t.Errorf("ReadSpeeds: %v, want an error with %q and the file's name", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for model, want := range tc.want {
				if got := speeds.Speed(model); got != want {
					t.Errorf("%q has speed %d, want %d", model, got, want)
				}
			}
		})
	}
	if _, err := Read(filepath.Join(t.TempDir(), "absent")); err == nil || !strings.Contains(err.Error(), "read the speeds of GPUs") {
		t.Errorf("ReadSpeeds of no file: %v", err)
	}
}
