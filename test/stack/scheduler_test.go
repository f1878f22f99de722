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
    profiles: [{schedulerName: gpumem-scheduler}]
    extenders: [{urlPrefix: "http://127.0.0.1:8010"}]
`

func TestSchedulerSettings(t *testing.T) {
	s, err := readSettings(renderedSettings)
	if err != nil || s.Name != "gpumem-scheduler" {
		t.Fatalf("got %q, %v", s.Name, err)
	}
	for _, with := range []bool{false, true} {
		config, err := s.Config(with)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(config), "127.0.0.1:8010"); got != with || strings.Contains(string(config), "resourceName") {
			t.Errorf("with the extender %t:\n%s", with, config)
		}
	}
	if _, err := readSettings("data: {config.yaml: '{}'}"); err == nil {
		t.Error("no extender is no error")
	}
}
