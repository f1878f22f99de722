package replay

import "math"

// kubeScheduler is how kube-scheduler scores nodes where nothing is configured:
// NodeResourcesFit with LeastAllocated and NodeResourcesBalancedAllocation, both over
// CPU and host memory and of the same weight (pkg/scheduler/framework/plugins/noderesources
// of Kubernetes v1.36). It places the pods that ask for no GPU.
type kubeScheduler struct{}

func (kubeScheduler) devices(*Fleet, *shape, *node) []int { return nil }

func (kubeScheduler) score(_ *Fleet, s *shape, n *node) int64 {
	least := (part(n.cpu-s.CPU, n.CPU) + part(n.memory-s.Memory, n.Memory)) / 2
	with, without := n.balance(s.CPU, s.Memory), n.balance(0, 0)
	return least + maxScore/2 + (maxScore/2+with-without)/2
}

// part returns a part of all in whole per cent.
func part(of, all int64) int64 { return int64(maxScore * (float64(of) / float64(max(1, all)))) }

// balance is highest where CPU and host memory are in use to the same part, with a pod that
// asks for so much.
func (n *node) balance(cpu, memory int64) int64 {
	left := float64(n.cpu-cpu)/float64(max(1, n.CPU)) - float64(n.memory-memory)/float64(max(1, n.Memory))
	return int64((1 - math.Abs(left)/2) * maxScore)
}
