package chaos

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// host is what the API server has written of a node.
type host struct {
	name  string
	takes bool  // new pods
	units int64 // that the kubelet offers
	gpus  devices
}

// hosts are all nodes.
type hosts []host

func hostOf(node *v1.Node) (host, error) {
	offered := node.Status.Allocatable[gpuMem]
	h := host{name: node.Name, units: offered.Value()}
	ready := slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	})
	h.takes = ready && !node.Spec.Unschedulable && !slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Effect != v1.TaintEffectPreferNoSchedule })
	var err error
	h.gpus, err = devicesOf(node)
	return h, err
}

// devices returns the GPUs of all nodes.
func (all hosts) devices() devices {
	var out devices
	for _, h := range all {
		out = append(out, h.gpus...)
	}
	return out
}

// fitting returns the names of the nodes on which a pod fits for certain: those
// where each bound pod's GPUs are known.
func (all hosts) fitting(pods []pod, p pod) []string {
	var out []string
	for _, h := range all {
		gpus := 0
		for _, d := range h.gpus {
			if fits(d, pods, p) {
				gpus++
			}
		}
		free, known := h.free(pods)
		if h.takes && known && free >= p.need && gpus >= p.count {
			out = append(out, h.name)
		}
	}
	return out
}

// free returns what a node has left by the sum of its pods, and whether it is
// known where all of them are.
func (h host) free(pods []pod) (units int64, known bool) {
	units, known = h.units, true
	for _, p := range pods {
		if p.node == h.name && !p.ended {
			units -= p.need
			known = known && p.problem == ""
		}
	}
	return units, known
}

// fits says whether a GPU has room for a pod's part on it.
func fits(d device, pods []pod, p pod) bool {
	if !d.healthy || p.pinned != "" && p.pinned != d.uuid {
		return false
	}
	free, empty := d.units, true
	for _, other := range pods {
		units := other.on(d)
		if units > 0 && other.exclusive {
			return false
		}
		free, empty = free-units, empty && units == 0
	}
	return free*int64(p.count) >= p.need && (empty || !p.exclusive)
}

// describe says what is free, a line for each node.
func (all hosts) describe(pods []pod) string {
	var b strings.Builder
	for _, h := range all {
		free, known := h.free(pods)
		fmt.Fprintf(&b, "%s has %d of %d units free by their sum; takes pods: %t; knows all their GPUs: %t; free by GPU:", h.name, free, h.units, h.takes, known)
		for _, d := range h.gpus {
			left := d.units
			for _, p := range pods {
				left -= p.on(d)
			}
			fmt.Fprintf(&b, " GPU%d %d of %d", d.index, left, d.units)
			if !d.healthy {
				b.WriteString(" (not healthy)")
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// idle returns the pods that fit, or are bound, and do not run.
func (all hosts) idle(pods []pod) []pod {
	var out []pod
	for _, p := range pods {
		switch {
		case p.ended, p.deleting:
		case p.node == "" && len(all.fitting(pods, p)) == 0:
		case p.node != "" && (p.ready || p.shape == restarts): // its containers come and go
		default:
			out = append(out, p)
		}
	}
	return out
}

// waits is for how long pods have waited that need not.
type waits struct {
	last    time.Time // it was looked, or the last fault
	none    time.Time // before this, no pod is late
	since   map[types.UID]time.Time
	told    map[types.UID]bool
	longest time.Duration
}

// newWaits is for what waits after the last fault and the last outage of the API
// server.
func newWaits(lastFault, lastOutage time.Time) *waits {
	return &waits{last: lastFault, none: lastOutage.Add(watchTime + idleTime), since: make(map[types.UID]time.Time), told: make(map[types.UID]bool)}
}

// look takes notice of the pods that wait now. It returns those that are late, each
// once, and whether there is nothing more to wait for.
func (w *waits) look(now time.Time, pods []pod) (late []pod, over bool) {
	since := make(map[types.UID]time.Time)
	over = true
	for _, p := range pods {
		start, known := w.since[p.uid]
		if !known {
			start = w.last
		}
		since[p.uid] = start
		w.longest = max(w.longest, now.Sub(start))
		switch {
		case now.Sub(start) <= idleTime || now.Before(w.none):
			over = false
		case !w.told[p.uid]:
			w.told[p.uid] = true
			late = append(late, p)
		}
	}
	w.since, w.last = since, now
	return late, over
}

// again has no pod be late until it has waited once more.
func (w *waits) again(now time.Time) {
	w.none = now.Add(idleTime)
	clear(w.told)
}
