package sim

import (
	"fmt"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// takeOver puts pods on a machine that gpushare has placed and that run: before
// any part of gpumem has.
func (m *machine) takeOver() {
	for _, d := range m.hardware {
		for range m.w.rng.IntN(3) {
			m.inherit(d)
		}
	}
	m.registered[gpu.Memory] = true
}

// inherit makes a pod that runs on a GPU, as gpushare has written.
func (m *machine) inherit(d gpu.Device) {
	w := m.w
	s := &spec{gpus: 1, namespace: namespaces[0], bound: m.name, gpushare: string(d.UUID), keeper: w.rng.IntN(3) == 0}
	for i := range 1 + w.rng.IntN(2) {
		s.containers = append(s.containers, container{name: fmt.Sprintf("c%d", i), kind: app, amount: amount{units: 2}})
	}
	s.need = peak(s.containers)
	w.create(s)
	s.begun, s.wasBound = true, true
	_ = w.api.changePod(s.name, podUID(s.uid), func(p *v1.Pod) { // it is there
		p.Annotations["ALIYUN_COM_GPU_MEM_IDX"] = strconv.Itoa(d.Index)
		p.Annotations["ALIYUN_COM_GPU_MEM_POD"] = strconv.Itoa(s.need.units)
		p.Annotations["ALIYUN_COM_GPU_MEM_DEV"] = strconv.Itoa(int(d.Allocatable))
		p.Annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] = "true"
		p.Annotations["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] = "1700000000000000000"
		began := w.api.wallClock()
		p.Status.Phase, p.Status.StartTime = v1.PodRunning, &began
	})
	m.checkpoint[s.uid] = make(map[part]*grant)
	m.sandboxes[s.uid] = &sandbox{running: make(map[string]bool), done: make(map[string]bool)}
	for i, c := range s.containers {
		m.checkpoint[s.uid][part{c.name, gpu.Memory}] = m.byGPUShare(d, 10*w.serial+4*i, c.amount.units)
		m.sandboxes[s.uid].running[c.name] = true
	}
}

// byGPUShare is what the kubelet has recorded of a container. gpushare's device
// plugin stated no preference, so it took IDs of whatever GPUs.
func (m *machine) byGPUShare(d gpu.Device, number, size int) *grant {
	g := &grant{env: map[string]string{"NVIDIA_VISIBLE_DEVICES": string(d.UUID)}}
	for i := range size {
		g.ids = append(g.ids, fmt.Sprintf("%s-_-%d", pick(m.w.rng, m.hardware).UUID, number+i))
	}
	return g
}
