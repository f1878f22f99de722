package stack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"sigs.k8s.io/yaml"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/test/cluster"
)

// SchedulerSettings is the configuration of kube-scheduler that the chart
// renders, for one that runs outside of its pod and is alone.
type SchedulerSettings struct {
	Name string // what pods write as their scheduler's
	all  map[string]any
}

// SchedulerSettings renders the chart with its defaults and a mode, "extender" or "plugin".
func (s *Stack) SchedulerSettings(ctx context.Context, c *cluster.Cluster, mode string) (SchedulerSettings, error) {
	helm, err := c.Helm(ctx, s.log)
	if err != nil {
		return SchedulerSettings{}, err
	}
	server, err := c.Client().Discovery().ServerVersion()
	if err != nil {
		return SchedulerSettings{}, err
	}
	rendered, err := run(ctx, helm, "template", Release, s.Chart(), "--namespace", Namespace,
		"--kube-version", server.GitVersion, "--set", "scheduler.mode="+mode, "--show-only", "templates/scheduler-configmap.yaml")
	if err != nil {
		return SchedulerSettings{}, err
	}
	settings, err := readSettings(rendered)
	if err != nil {
		return SchedulerSettings{}, fmt.Errorf("the chart's configuration of kube-scheduler: %w", err)
	}
	return settings, nil
}

func readSettings(rendered string) (SchedulerSettings, error) {
	var object v1.ConfigMap
	if err := yaml.Unmarshal([]byte(rendered), &object); err != nil {
		return SchedulerSettings{}, err
	}
	var s SchedulerSettings
	if err := yaml.Unmarshal([]byte(object.Data["config.yaml"]), &s.all); err != nil {
		return SchedulerSettings{}, err
	}
	var read struct {
		Profiles []struct{ SchedulerName string } `json:"profiles"`
	}
	if err := yaml.Unmarshal([]byte(object.Data["config.yaml"]), &read); err != nil {
		return SchedulerSettings{}, err
	}
	if len(read.Profiles) != 1 {
		return SchedulerSettings{}, errors.New("want one profile:\n" + strings.TrimSpace(rendered))
	}
	s.Name = read.Profiles[0].SchedulerName
	return s, nil
}

// Config returns the configuration for a kube-scheduler that may talk to the API server as fast
// as it can, but for what some changes make of it.
func (s SchedulerSettings) Config(changes ...func(config map[string]any)) ([]byte, error) {
	config := maps.Clone(s.all)
	config["leaderElection"] = map[string]any{"leaderElect": false}
	config["clientConnection"] = map[string]any{"qps": 1e5, "burst": 100000}
	for _, change := range changes {
		change(config)
	}
	return yaml.Marshal(config)
}

// Plain leaves nothing of gpumem in a configuration but the name of the profile.
func (s SchedulerSettings) Plain(config map[string]any) {
	delete(config, "extenders")
	config["profiles"] = []any{map[string]any{"schedulerName": s.Name}}
}
