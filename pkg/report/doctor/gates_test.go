package doctor

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

func TestFeatureGatesThatAreOff(t *testing.T) {
	for name, c := range map[string]struct {
		command, args []string
		want          []string
	}{
		"as they come":        {[]string{"kube-scheduler"}, []string{"--v=2"}, nil},
		"off in the command":  {[]string{"kube-scheduler", "--feature-gates=A=false"}, nil, []string{"A"}},
		"off in an argument":  {nil, []string{"--feature-gates=Other=false, B=0"}, []string{"B"}},
		"the last one counts": {nil, []string{"--feature-gates=A=false,B=false", "--feature-gates=A=true"}, []string{"B"}},
		"all are off":         {nil, []string{"--feature-gates=AllBeta=false"}, []string{"A", "B"}},
		"all but one are off": {nil, []string{"--feature-gates=A=true,AllBeta=false"}, []string{"B"}},
		"what is no gate":     {nil, []string{"--feature-gates=", "--feature-gates=A", "--feature-gates=A=maybe"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			spec := v1.PodSpec{Containers: []v1.Container{{Name: "other"}, {Command: c.command, Args: c.args}}}
			if diff := cmp.Diff(c.want, disabledGates(spec, "A", "B")); diff != "" {
				t.Error(diff)
			}
		})
	}
}
