package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// takeOver puts pods on a machine that gpushare has placed and that run: before
// any part of gpumem has. Its device plugin stated no preference, so the kubelet
// took IDs of whatever GPUs; the scheduler's annotation names the one that each
// pod uses.
func (m *machine) takeOver() {
	w, serial := m.w, 0
	for _, d := range m.hardware {
		for range w.rng.IntN(3) {
			s := &spec{gpus: 1, bound: m.name, gpushare: string(d.UUID), begun: true, wasBound: true, keeper: w.rng.IntN(3) == 0}
			for i := range 1 + w.rng.IntN(2) {
				s.containers = append(s.containers, container{name: fmt.Sprintf("c%d", i), kind: app, amount: amount{units: 2}})
			}
			s.need = peak(s.containers)
			w.create(s)
			m.sandboxes[s.uid] = &sandbox{running: make(map[string]bool), done: make(map[string]bool)}
			m.checkpoint[s.uid] = make(map[part]*grant)
			for _, c := range s.containers {
				g := &grant{env: map[string]string{"NVIDIA_VISIBLE_DEVICES": string(d.UUID)}}
				for range c.amount.units {
					serial++
					g.ids = append(g.ids, fmt.Sprintf("%s-_-%d", pick(w.rng, m.hardware).UUID, serial))
				}
				m.checkpoint[s.uid][part{c.name, gpu.Memory}] = g
				m.sandboxes[s.uid].running[c.name] = true
			}
			_ = w.api.changePod(s.name, podUID(s.uid), func(p *v1.Pod) { // it is there
				p.Annotations["ALIYUN_COM_GPU_MEM_IDX"] = strconv.Itoa(d.Index)
				p.Annotations["ALIYUN_COM_GPU_MEM_POD"] = strconv.Itoa(s.need.units)
				p.Annotations["ALIYUN_COM_GPU_MEM_DEV"] = strconv.Itoa(int(d.Capacity))
				p.Annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] = "true"
				p.Annotations["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] = "1700000000000000000"
				began := w.api.wallClock()
				p.Status.Phase, p.Status.StartTime = v1.PodRunning, &began
			})
		}
	}
	m.registered[gpu.Memory] = true
}

// where returns the GPUs of IDs that a pod has. Those of gpushare's plugin tell
// nothing: the pod is where gpushare has put it.
func (m *machine) where(s *spec, ids []string) []string {
	if slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(id, "-_-") }) {
		return []string{s.gpushare}
	}
	return m.gpusOf(ids)
}
