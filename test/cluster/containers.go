package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/test/cluster/internal/linux"
)

// ContainerProcess is a process in a container of a pod.
type ContainerProcess struct {
	linux.Process
	Program   string // base name of its executable
	Node      string
	Pod       types.UID
	Container string // ID
}

// ContainerProcesses returns the processes in containers of the cluster's pods
// that run one of the programs.
func (c *Cluster) ContainerProcesses(programs ...string) ([]ContainerProcess, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []ContainerProcess
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		// A process that is ending has no executable any more.
		exe, err := os.Readlink(filepath.Join("/proc", entry.Name(), "exe"))
		if err != nil || !slices.Contains(programs, filepath.Base(exe)) {
			continue
		}
		p := ContainerProcess{Program: filepath.Base(exe)}
		if p.Process, err = linux.Identify(pid); err != nil || !p.locate(c.state.cgroup()) {
			continue
		}
		out = append(out, p)
	}
	return out, nil
}

// locate finds out in which container the process is, from its control group:
// CLUSTER/NODE/kubepods/…/podUID/CONTAINER.
func (p *ContainerProcess) locate(cluster string) bool {
	paths, err := linux.Cgroups(p.PID)
	if err != nil {
		return false
	}
	for _, path := range paths {
		_, below, ok := strings.Cut(path, cluster+"/")
		if !ok {
			continue
		}
		parts := strings.Split(below, "/")
		i := slices.IndexFunc(parts, func(part string) bool { return strings.HasPrefix(part, "pod") && strings.Contains(part, "-") })
		if i >= 0 && i+1 < len(parts) {
			p.Node, p.Pod, p.Container = parts[0], types.UID(strings.TrimPrefix(parts[i], "pod")), parts[i+1]
			return true
		}
	}
	return false
}

// Environment returns the variables that the process was started with. One
// that is ending has none.
func (p ContainerProcess) Environment() (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "environ"))
	if err != nil {
		return nil, err
	}
	out := make(map[string]string)
	for variable := range strings.SplitSeq(string(text), "\x00") {
		if key, value, ok := strings.Cut(variable, "="); ok {
			out[key] = value
		}
	}
	return out, nil
}
