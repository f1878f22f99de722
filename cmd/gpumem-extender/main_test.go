package main

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/placement"
)

func TestOptionsReportAllMistakes(t *testing.T) {
	o := defaultOptions()
	args := []string{
		"--listen=0.0.0.0:8010", "--probe-listen=8011", "--resource-domain=Not A Domain", "--policy=best", "--node-policy=exclusive",
		"--assume-limit=1s", "--kube-api-qps=0", "--log-level=loud",
	}
	if err := o.parse(args, io.Discard); err != nil {
		t.Fatal(err)
	}
	err := o.validate()
	if err == nil {
		t.Fatal("all is well")
	}
	for _, want := range []string{
		"--listen", "--probe-listen", "--resource-domain", "--policy: policy \"best\"", "--node-policy: a pod must ask for exclusive itself",
		"--assume-limit", "--kube-api-qps", "log level",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not a word on %s in: %v", want, err)
		}
	}
}

func TestPolicies(t *testing.T) {
	tests := map[string]struct {
		args []string
		want placement.Policies
	}{
		"by default":        {nil, placement.Policies{GPU: placement.Binpack}},
		"of GPUs and nodes": {[]string{"--policy=spread"}, placement.Policies{GPU: placement.Spread}},
		"one for each":      {[]string{"--policy=binpack", "--node-policy=spread"}, placement.Policies{GPU: placement.Binpack, Node: placement.Spread}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := defaultOptions()
			if err := o.parse(tc.args, io.Discard); err != nil {
				t.Fatal(err)
			}
			got, err := o.policies()
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil || o.validate() != nil {
				t.Errorf("policies: %v, %v (-want +got):\n%s", err, o.validate(), diff)
			}
		})
	}
}
