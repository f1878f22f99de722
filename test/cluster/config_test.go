package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

func TestConfigComplete(t *testing.T) {
	t.Setenv("GPUMEM_CACHE", "/cache")
	tests := map[string]struct {
		config    Config
		wantState string
		wantErr   string
	}{
		"defaults":       {config: Config{Name: "a"}, wantState: "/cache/clusters/a"},
		"own folder":     {config: Config{Name: "a", StateDir: "/b"}, wantState: "/b"},
		"no name":        {config: Config{}, wantErr: "not a DNS label"},
		"long name":      {config: Config{Name: strings.Repeat("a", 33)}, wantErr: "not a DNS label"},
		"node name":      {config: Config{Name: "a", Nodes: []Node{{Name: "A"}}}, wantErr: "not a DNS label"},
		"reserved node":  {config: Config{Name: "a", Nodes: []Node{{Name: fabric}}}, wantErr: fabric},
		"two nodes":      {config: Config{Name: "a", Nodes: []Node{{Name: "n"}, {Name: "n"}}}, wantErr: "two nodes are called n"},
		"hidden":         {config: Config{Name: "a", StateDir: "/var/lib/a"}, wantErr: "cannot be used"},
		"hidden in part": {config: Config{Name: "a", StateDir: "/run"}, wantErr: "cannot be used"},
		"just alike":     {config: Config{Name: "a", StateDir: "/runs"}, wantState: "/runs"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := test.config.complete()
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Fatalf("complete() = %v, want an error with %q", err, test.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.StateDir != test.wantState {
				t.Errorf("state folder = %s, want %s", got.StateDir, test.wantState)
			}
		})
	}
}

// TestKubeletConfig lays a node's own configuration over the cluster's.
func TestKubeletConfig(t *testing.T) {
	c := &Cluster{dir: t.TempDir(), state: &state{Name: "a"}}
	n := nodeState{Node: Node{Name: "n", Kubelet: []byte("maxPods: 7\nevictionHard:\n  memory.available: 1Mi\n")}, Index: 3}
	content, err := c.kubeletConfig(n)
	if err != nil {
		t.Fatal(err)
	}
	var got kubeletconfig.KubeletConfiguration
	if err := yaml.UnmarshalStrict(content, &got); err != nil {
		t.Fatal(err)
	}
	type choice struct {
		MaxPods        int32
		Memory, NodeFS string
		CgroupRoot     string
	}
	want := choice{MaxPods: 7, Memory: "1Mi", NodeFS: "0%", CgroupRoot: "/gpumem-a/n"}
	if diff := cmp.Diff(want, choice{got.MaxPods, got.EvictionHard["memory.available"], got.EvictionHard["nodefs.available"], got.CgroupRoot}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	n.Kubelet = []byte("maxPods: many")
	if _, err := c.kubeletConfig(n); err == nil {
		t.Error("a configuration that does not parse is taken")
	}
}

func TestSchedulerConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scheduler.yaml")
	if err := writeSchedulerConfig(file, []byte("parallelism: 3\nclientConnection: {qps: 9}\n"), "/kubeconfig"); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]any)
	if err := yaml.Unmarshal(content, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"apiVersion":       "kubescheduler.config.k8s.io/v1",
		"kind":             "KubeSchedulerConfiguration",
		"clientConnection": map[string]any{"qps": 9.0, "kubeconfig": "/kubeconfig"},
		"leaderElection":   map[string]any{"leaderElect": false},
		"parallelism":      3.0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestState(t *testing.T) {
	dir := t.TempDir()
	want := &state{Name: "a", Port: 1, Nodes: []nodeState{{Node: Node{Name: "n", GPUs: []byte("{}")}, Index: 1}},
		Processes: map[string]*process{"etcd": {Where: fabric, Path: "/etcd", Args: []string{"-x"}}}}
	want.Processes["etcd"].PID = 7
	if err := want.write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := readState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
}
