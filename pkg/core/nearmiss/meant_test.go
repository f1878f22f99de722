package nearmiss_test

import (
	"testing"

	"github.com/gpumem/gpumem/pkg/core/nearmiss"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

func TestMeant(t *testing.T) {
	known := []string{"policy", "gpu-model", "priority-class"}
	for name, want := range map[string]string{
		"policy": "policy", "polcy": "policy", "policies": "", "plicy": "policy", "gpu-mdel": "gpu-model", "models": "gpu-model", "model": "gpu-model", "mode": "",
		"": "", "po": "policy", "p": "", "policyxy": "policy", "policyxyz": "", "priority-clss": "priority-class", "priority-classes": "priority-class", "priority-classesx": "",
	} {
		if got := nearmiss.SimilarName(name, known); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	if got := nearmiss.SimilarName("abd", []string{"abcd", "abdc", "abde"}); got != "abcd" {
		t.Errorf("of equally similar names %q is meant, want the first", got)
	}
}

func TestMeantModel(t *testing.T) {
	const a100, t4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"
	for _, tc := range []struct {
		models string
		want   string
	}{
		{"*telsa*", "*Tesla*"},
		{"*Tesla*", ""}, // no misspelling
		{"A100-SMX4", "*A100-SXM4*"},
		{"*nvidai-A100*", "*NVIDIA-A100*"},
		{"A10", ""},                   // another model
		{"*telsa*,*A100*", "*Tesla*"}, // only the first counts
		{"!telsa", ""},
		{"tel?a", ""},
		{"radeon", ""},
	} {
		n := node(inventory(device(0, 79, model(a100)), device(1, 79, model(a100)), device(2, 14, model(t4))))
		if got := nearmiss.MeantModel(placement.Fit(ask(1, globsOf(tc.models)), n)); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.models, got, tc.want)
		}
	}
}

func TestLargeEnough(t *testing.T) {
	n := node(inventory(device(0, 14, model("Tesla T4")), device(1, 79), device(2, 79), device(3, 40)), hold("x", ask(79), 1))
	for _, tc := range []struct {
		req  placement.Request
		want int
	}{
		{ask(1), 4},
		{ask(15), 3},
		{ask(79), 2}, // one of them is full
		{ask(80), 0},
		{ask(1, globsOf("*T4*")), 1},
		{ask(15, globsOf("*T4*")), 0},
		{ask(50, globsOf("*A100*")), 2},
	} {
		if got := nearmiss.LargeEnough(placement.Fit(tc.req, n)); got != tc.want {
			t.Errorf("%d units of %q: %d GPUs, want %d", tc.req.Units(), tc.req.Models, got, tc.want)
		}
	}
}
