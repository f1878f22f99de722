package sim

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// chaos makes something happen, and then something else.
func (w *World) chaos() {
	w.after(w.between(10*tick, 400*tick), nil, "-", func() {
		if w.quiet {
			return
		}
		if w.rng.IntN(100) < 55 {
			w.userActs()
		} else {
			w.faultHappens()
		}
		w.chaos()
	})
}

// userActs creates and deletes pods.
func (w *World) userActs() {
	switch w.rng.IntN(10) {
	case 0, 1, 2:
		w.deleteSome()
	case 3:
		if !w.cfg.Unassigned {
			return
		}
		m := pick(w.rng, w.machines)
		if w.api.nodes[m.name] == nil || !m.registered[gpu.Memory] {
			return
		}
		s := w.newSpec()
		s.bound, s.need.shares = m.name, m.shares
		w.create(s)
	default:
		if len(w.api.pods) >= w.room {
			w.deleteSome()
			return
		}
		for range 1 + w.rng.IntN(3) {
			w.create(w.newSpec())
		}
	}
}

// deleteSome deletes a pod, with grace or by force, and may make it again at
// once under its name.
func (w *World) deleteSome() {
	if len(w.api.pods) == 0 {
		return
	}
	pod := pick(w.rng, sorted(w.api.pods))
	grace := !w.cfg.Namesakes && w.rng.IntN(3) > 0
	w.logf("  user deletes %s, grace %t", pod.Name, grace)
	_ = w.api.deletePod(pod.Name, pod.UID, grace) // it is there
	if s := w.pods[string(pod.UID)]; s.keeper && w.api.pods[pod.Name] == nil {
		w.again(s, w.between(1*tick, 300*tick))
	}
}

// again makes a pod anew under its name.
func (w *World) again(s *spec, d time.Duration) {
	w.after(d, nil, "controller makes "+s.name+" again", func() {
		if w.api.pods[s.name] != nil || w.quiet {
			return
		}
		next := w.newSpec()
		if w.rng.IntN(2) == 0 {
			next = s.anew()
		}
		next.name, next.keeper = s.name, true
		w.create(next)
	})
}

// faultHappens breaks something, of the kinds that the run is to have.
func (w *World) faultHappens() {
	kinds := w.cfg.kinds
	if len(kinds) == 0 {
		return
	}
	f := kinds[w.rng.IntN(len(kinds))]
	w.logf("  fault: %s", f.name)
	f.do(w)
}

type fault struct {
	name string
	do   func(*World)
}

var allFaults = []fault{
	{"an extender crashes", func(w *World) {
		r := pick(w.rng, w.replicas)
		if r.ext.live {
			r.ext.crash()
			w.after(w.between(200*tick, 5*time.Second), nil, r.name+": extender starts", func() {
				if !r.ext.live {
					r.ext = w.newExtender(r)
				}
			})
		}
	}},
	{"a scheduler crashes", func(w *World) {
		r := w.replicas[w.leader]
		if w.cfg.Mode == inProcess {
			w.restart(r)
		} else if r.sched != nil && r.sched.live {
			r.sched.kill()
			w.after(w.between(200*tick, 5*time.Second), nil, r.name+": scheduler starts", w.lead)
		}
	}},
	{"a failover", func(w *World) {
		if p := w.replicas[w.leader].ext.plugged; p != nil {
			if p.cut = w.rng.IntN(2) == 0; !p.cut && p.live && p.leads {
				p.giveBack()
			}
			return
		}
		// The new leader may begin before the old one has noticed.
		if old := w.replicas[w.leader].sched; old != nil {
			w.after(w.between(1*tick, 3*time.Second), old.process, old.name+": has lost the lead", func() {
				old.kill()
				w.lead()
			})
		}
		w.leader = (w.leader + 1) % len(w.replicas)
		w.after(w.between(1*tick, 3*time.Second), nil, w.replicas[w.leader].name+": leads", w.lead)
	}},
	{"a process stalls", func(w *World) {
		p := pick(w.rng, likely(w, w.procs, func(p *process) *process { return p }))
		w.logf("  %s", p.name)
		w.stall(p, w.between(500*tick, 8*time.Second))
	}},
	{"a plugin crashes", func(w *World) {
		m := pick(w.rng, w.machines)
		m.killPlugin()
		w.after(w.between(200*tick, 5*time.Second), nil, m.name+": plugin starts", m.startPlugin)
	}},
	{"a kubelet restarts", func(w *World) {
		m := pick(w.rng, w.machines)
		m.killKubelet()
		w.after(w.between(200*tick, 5*time.Second), nil, m.name+": kubelet starts", m.startKubelet)
	}},
	{"a kubelet does not tell what it has given", func(w *World) {
		pick(w.rng, w.machines).deaf = w.now() + w.between(100*tick, 10*time.Second)
	}},
	{"a machine reboots", func(w *World) {
		if w.rng.IntN(3) == 0 {
			pick(w.rng, w.machines).reboot()
		}
	}},
	{"a container ends and starts again", func(w *World) {
		m := pick(w.rng, w.machines)
		if m.kubelet != nil && m.kubelet.live {
			m.kubelet.restartOne()
		}
	}},
	{"a plugin loses its socket", func(w *World) {
		if m := pick(w.rng, w.machines); m.plugin != nil && m.plugin.live {
			m.plugin.registerSoon()
		}
	}},
	{"a GPU fails", func(w *World) {
		m := pick(w.rng, w.machines)
		d := pick(w.rng, m.hardware).UUID
		m.setHealth(d, false)
		w.after(w.between(time.Second, 20*time.Second), nil, "GPU recovers", func() { m.setHealth(d, true) })
	}},
	{"a machine shrinks", func(w *World) {
		m := pick(w.rng, w.machines)
		i := w.rng.IntN(len(m.hardware))
		if w.rng.IntN(2) == 0 && len(m.hardware) > 1 {
			m.resized[m.hardware[i].UUID] = true
			m.hardware = slices.Delete(slices.Clone(m.hardware), i, i+1)
		} else if m.hardware[i].Allocatable > 4 {
			m.resized[m.hardware[i].UUID] = true
			m.hardware[i].Allocatable -= 2
			m.hardware[i].Foreign = min(m.hardware[i].Foreign, m.hardware[i].Allocatable)
		}
		m.reprobe()
	}},
	{"a machine grows", func(w *World) {
		m := pick(w.rng, w.machines)
		if len(m.hardware) < 4 {
			m.addGPU()
		}
		m.reprobe()
	}},
	{"a node vanishes", func(w *World) {
		if w.rng.IntN(2) == 0 {
			pick(w.rng, w.machines).vanish()
		}
	}},
	{"a watch lags", func(w *World) {
		lag, d := w.between(200*tick, 2*time.Second), w.someStream().slowness()
		was := *d
		*d = lag
		w.after(w.between(time.Second, 10*time.Second), nil, "a watch is quick again", func() { *d = min(was, 20*tick) })
	}},
	{"a watch breaks", func(w *World) { w.someStream().disconnect() }},
	{"the API server restarts", func(w *World) {
		if w.api.down {
			return
		}
		w.api.down = true
		for _, s := range w.api.streams() {
			s.disconnect()
		}
		w.after(w.between(100*tick, 8*time.Second), nil, "the API server is back", func() { w.api.down = false })
	}},
	{"a clock jumps", func(w *World) {
		w.api.skew += w.between(0, 2*time.Hour) - time.Hour
	}},
	{"other programs use a GPU, or leave it", func(w *World) {
		m := pick(w.rng, w.machines)
		d := &m.hardware[w.rng.IntN(len(m.hardware))]
		d.Foreign = pick(w.rng, []gpu.Units{0, 2, 4, d.Allocatable})
		m.reprobe()
	}},
	{"somebody cordons a GPU, or uncordons all", func(w *World) {
		w.cordon(pick(w.rng, w.machines))
	}},
	{"somebody edits an assignment", func(w *World) {
		if len(w.api.pods) == 0 {
			return
		}
		pod := pick(w.rng, sorted(w.api.pods))
		if pod.Spec.NodeName == "" || pod.Status.StartTime == nil || w.cfg.Adversary == underPolicies {
			return // or it is refused
		}
		value := pick(w.rng, []string{"", "{", `{"v":9}`, `{"v":1,"gpus":[{"uuid":"GPU-none","index":0,"units":2}]}`})
		_ = w.api.changePod(pod.Name, pod.UID, func(p *v1.Pod) { // it is there
			if value == "" {
				delete(p.Annotations, w.names.Assignment())
			} else {
				p.Annotations[w.names.Assignment()] = value
			}
		})
	}},
	{"somebody edits an inventory", func(w *World) {
		_ = w.api.changeNode(pick(w.rng, w.machines).name, func(n *v1.Node) { // or it is not there
			if w.rng.IntN(2) == 0 {
				delete(n.Annotations, w.names.Inventory())
			} else {
				n.Annotations[w.names.Inventory()] = "{"
			}
		})
	}},
}

// likely returns those that live of many things with a process. Where most are of
// machines they are those of the replicas, every other time.
func likely[T any](w *World, all []T, process func(T) *process) []T {
	all = slices.DeleteFunc(slices.Clone(all), func(t T) bool { return !process(t).live })
	central := slices.DeleteFunc(slices.Clone(all), func(t T) bool {
		return !slices.ContainsFunc(w.replicas, func(r *replica) bool {
			p := process(t)
			return p == r.ext.process || r.sched != nil && p == r.sched.process
		})
	})
	if len(w.machines) > 2 && len(central) > 0 && w.rng.IntN(2) == 0 {
		return central
	}
	return all
}

func (m *machine) setHealth(id gpu.UUID, healthy bool) {
	for i := range m.hardware {
		if m.hardware[i].UUID == id {
			m.hardware[i].Status = gpu.Unhealthy("XID 79")
			if healthy {
				m.hardware[i].Status = gpu.Status{}
			}
		}
	}
	m.reprobe()
}

func (m *machine) reprobe() {
	if m.plugin != nil && m.plugin.live {
		m.plugin.reprobe()
	}
}

// vanish deletes the node and, some time later, its pods, as the controllers
// of a cloud do. The node comes back under its name: as it was, or another
// machine.
func (m *machine) vanish() {
	w := m.w
	if w.api.nodes[m.name] == nil {
		return
	}
	w.api.setNode(m.name, nil)
	m.killPlugin()
	m.killKubelet()
	w.after(w.between(100*tick, 3*time.Second), nil, "pods of "+m.name+" are collected", func() {
		if w.api.nodes[m.name] != nil {
			return
		}
		for _, pod := range sorted(w.api.pods) {
			if pod.Spec.NodeName == m.name {
				w.api.setPod(pod.Name, nil)
			}
		}
	})
	other := w.rng.IntN(2) == 0
	w.after(w.between(50*tick, 8*time.Second), nil, m.name+" comes back", func() {
		if other {
			m.killKubelet()
			m.killPlugin()
			m.checkpoint, m.registered = make(map[string]map[part]*grant), [2]bool{}
			m.sandboxes = make(map[string]*sandbox)
			m.hardware = nil
			for range 2 {
				m.addGPU()
			}
		}
		m.startKubelet()
		m.startPlugin()
	})
}

// lead has the leading replica's scheduler run.
func (w *World) lead() {
	if r := w.replicas[w.leader]; r.sched == nil || !r.sched.live {
		w.startScheduler(r)
	}
}

// calm turns the faults off and mends what is broken.
func (w *World) calm() {
	w.quiet = true
	w.logf("--- faults are off")
	w.api.down = false
	for _, s := range w.api.streams() {
		*s.slowness() = 10 * tick
	}
	for _, r := range w.replicas {
		if !r.ext.live {
			r.ext = w.newExtender(r)
		}
		if r.ext.plugged != nil {
			r.ext.plugged.freezes = false
		}
	}
	if w.cfg.Mode == throughExtender {
		for i, r := range w.replicas {
			if i != w.leader && r.sched != nil {
				r.sched.kill()
			}
		}
		w.lead()
	}
	for i := range 3 {
		w.after(time.Duration(20+10*i)*time.Second, nil, "a pod ends", w.endOne)
	}
	w.after(settleTime, nil, "all has settled", func() {
		w.watchLiveness()
		w.bustle(w.now() + bustleTime)
	})
	for _, m := range w.machines {
		m.deaf = 0
		for i := range m.hardware {
			m.hardware[i].Status = gpu.Status{}
		}
		m.startKubelet()
		m.startPlugin()
		m.reprobe()
	}
}

// bustleTime is how long people go on when the faults are over.
const bustleTime = 90 * time.Second

// bustle is what a cluster sees every day: pods come and go, other programs use GPUs
// and leave them, people cordon GPUs, and the lead changes hands.
func (w *World) bustle(until time.Duration) {
	pause := w.between(200*tick, 4*time.Second)
	if w.rng.IntN(4) == 0 {
		pause *= 5
	}
	w.after(pause, nil, "-", func() {
		if w.now() > until {
			return
		}
		switch m := pick(w.rng, w.machines); w.rng.IntN(12) {
		case 0, 1, 2:
			w.endOne()
		case 3:
			d := &m.hardware[w.rng.IntN(len(m.hardware))]
			d.Foreign = pick(w.rng, []gpu.Units{0, 0, 2, d.Allocatable})
			m.reprobe()
		case 4:
			w.cordon(m)
		case 5:
			w.handOver()
		default:
			for range 1 + w.rng.IntN(3) {
				if len(w.api.pods) < w.room {
					w.create(w.newSpec())
				}
			}
		}
		w.bustle(until)
	})
}

// cordon has somebody cordon a GPU, or uncordon all.
func (w *World) cordon(m *machine) {
	cordoned := ""
	if w.rng.IntN(3) > 0 {
		cordoned = "GPU-that-is-not-here," + string(pick(w.rng, m.hardware).UUID)
	}
	_ = w.api.changeNode(m.name, func(n *v1.Node) { // or it is not there
		n.Annotations[w.names.Domain()+"/cordoned-gpus"] = cordoned
	})
}

// handOver has the leader give up the lead, as one does that is told to end, and the
// other take it.
func (w *World) handOver() {
	if p := w.replicas[w.leader].ext.plugged; p != nil {
		if p.live && p.leads {
			p.giveBack()
		}
		return
	}
	if old := w.replicas[w.leader].sched; old != nil {
		old.kill()
	}
	w.leader = (w.leader + 1) % len(w.replicas)
	w.after(w.between(1*tick, 3*time.Second), nil, w.replicas[w.leader].name+": leads", w.lead)
}

// endOne ends a pod when all is quiet: nothing else happens then that has those
// tried again that wait for its room.
func (w *World) endOne() {
	runs := func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodRunning && pod.DeletionTimestamp == nil }
	on := slices.DeleteFunc(sorted(w.api.pods), func(pod *v1.Pod) bool { return !runs(pod) })
	if len(on) > 0 {
		pod := pick(w.rng, on)
		w.logf("  user deletes %s", pod.Name)
		_ = w.api.deletePod(pod.Name, pod.UID, true) // it is there
	}
}
