package report

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMarksAreRound(t *testing.T) {
	tests := map[string]struct {
		low, high float64
		want      []float64
	}{
		"all":              {0, 100, []float64{0, 20, 40, 60, 80, 100}},
		"a part":           {61.2, 95.4, []float64{60, 65, 70, 75, 80, 85, 90, 95, 100}},
		"on the marks":     {60, 90, []float64{60, 65, 70, 75, 80, 85, 90}},
		"next to nothing":  {94.2, 95.2, []float64{94, 95, 96}},
		"nothing, and one": {0, 1, []float64{0, 1}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, roundMarks(tc.low, tc.high)); diff != "" {
				t.Errorf("marks (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNamesStandApart(t *testing.T) {
	lines := []line{{Policy: "a", KeyY: 100}, {Policy: "b", KeyY: 102}, {Policy: "c", KeyY: 30}, {Policy: "d", KeyY: 101}}
	partNames(lines)
	want := []float64{74, 102, 30, 88}
	for i, l := range lines {
		if l.KeyY != want[i] {
			t.Errorf("%s stands at %v, want %v", l.Policy, l.KeyY, want[i])
		}
	}
}
