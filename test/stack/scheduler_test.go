package stack

import (
	"strings"
	"testing"
)

const renderedSettings = `apiVersion: v1
kind: ConfigMap
data:
  config.yaml: |
    kind: KubeSchedulerConfiguration
    leaderElection: {leaderElect: true, resourceName: x}
    profiles: [{schedulerName: gpumem-scheduler, percentageOfNodesToScore: 100, plugins: {bind: {enabled: [{name: GPUMemory}]}}}]
    extenders: [{urlPrefix: "http://127.0.0.1:8010"}]
`

func TestSchedulerSettings(t *testing.T) {
	s, err := readSettings(renderedSettings)
	if err != nil || s.Name != "gpumem-scheduler" {
		t.Fatalf("got %q, %v", s.Name, err)
	}
	type change = func(map[string]any)
	for _, tc := range []struct {
		name               string
		changes            []change
		extender, all, has bool
	}{
		{"as it is", nil, true, true, true},
		{"plain", []change{s.Plain}, false, false, false},
	} {
		config, err := s.Config(tc.changes...)
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string]bool{
			"127.0.0.1:8010": tc.extender, "percentageOfNodesToScore: 100": tc.all, "GPUMemory": tc.has, "resourceName": false, "schedulerName: gpumem-scheduler": true,
		} {
			if strings.Contains(string(config), text) != want {
				t.Errorf("%s: want %q: %t:\n%s", tc.name, text, want, config)
			}
		}
	}
	if _, err := readSettings("data: {config.yaml: '{}'}"); err == nil {
		t.Error("no profile is no error")
	}
}
