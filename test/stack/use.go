package stack

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/fakenvml"
)

// Use has the simulated drivers say that the processes of the sample image use the GPU that their
// container was given: the first that was started as the first of uses says, and so on. The
// nodes are those of the cluster, as they were described to it.
func Use(c *cluster.Cluster, nodes []cluster.Node, uses []fakenvml.Process) error {
	found, err := c.ContainerProcesses("sample")
	if err != nil {
		return err
	}
	if len(found) != len(uses) {
		return fmt.Errorf("%d processes of the sample image run, want %d", len(found), len(uses))
	}
	slices.SortFunc(found, func(a, b cluster.ContainerProcess) int { return cmp.Compare(a.PID, b.PID) })
	for _, node := range nodes {
		var m fakenvml.Machine
		if err := json.Unmarshal(node.GPUs, &m); err != nil {
			return fmt.Errorf("read the GPUs of %s: %w", node.Name, err)
		}
		for i, p := range found {
			if p.Node != node.Name {
				continue
			}
			env, err := p.Environment()
			if err != nil {
				return err
			}
			pid, err := cluster.NodePID(p.PID)
			if err != nil {
				return err
			}
			uses[i].PID = uint32(pid)
			if err := addProcess(&m, env["NVIDIA_VISIBLE_DEVICES"], uses[i]); err != nil {
				return fmt.Errorf("node %s: %w", node.Name, err)
			}
		}
		description, err := json.Marshal(m)
		if err != nil {
			return err
		}
		if err := c.SetGPUs(node.Name, description); err != nil {
			return err
		}
	}
	return nil
}

// addProcess puts a process on the GPU with that UUID.
func addProcess(m *fakenvml.Machine, uuid string, p fakenvml.Process) error {
	i := slices.IndexFunc(m.GPUs, func(g fakenvml.GPU) bool { return g.UUID == uuid })
	if i < 0 {
		return fmt.Errorf("no GPU %q", uuid)
	}
	m.GPUs[i].Processes = append(m.GPUs[i].Processes, p)
	return nil
}
