package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// preparedShare is a claim's part of a GPU, as the checkpoint has it: read without the product.
type preparedShare struct {
	Device string `json:"device"`
	MiB    int    `json:"mib"`
	Cores  int    `json:"cores"`
}

// prepared reads the checkpoint of a node.
func (n *claimNode) prepared() map[types.UID][]preparedShare {
	var file struct {
		Claims []struct {
			UID    types.UID       `json:"uid"`
			Shares []preparedShare `json:"shares"`
		} `json:"claims"`
	}
	if n.disk.checkpoint != nil {
		if err := json.Unmarshal(n.disk.checkpoint, &file); err != nil {
			n.w.violate("I9", "the checkpoint of %s cannot be read: %v", n.name, err)
		}
	}
	out := make(map[types.UID][]preparedShare)
	for _, c := range file.Claims {
		out[c.UID] = c.Shares
	}
	return out
}

// checkClaims is I1 on nodes with claims: what is prepared of a GPU is no more than it has, and each
// container that runs has what was allocated to its claim.
func (w *World) checkClaims() {
	for _, n := range w.claims.nodes {
		prepared := n.prepared()
		sum := make(map[string]amount)
		for _, shares := range prepared {
			for _, s := range shares {
				sum[s.Device] = sum[s.Device].plus(amount{units: s.MiB / unitMiB, cores: s.Cores})
			}
		}
		for _, d := range n.hardware {
			if taken := sum[strings.ToLower(string(d.UUID))]; taken.units > int(d.Allocatable) && !n.resized[d.UUID] || taken.cores > allCores {
				w.violate("I1", "claims of %v are prepared on %s of %s, which has %d units", taken, d.UUID, n.name, d.Allocatable)
			}
		}
		for _, p := range sorted(n.running) {
			if got, want := prepared[p.of.uid], p.of.shares(); !slices.Equal(got, want) {
				w.violate("I1", "%s runs on %s with claim %s, of which %v is prepared, want %v", p.name, n.name, p.of.uid, got, want)
			}
		}
	}
}

func (c *claim) shares() (out []preparedShare) {
	for _, name := range c.on {
		out = append(out, preparedShare{name, c.need.units * unitMiB, c.need.cores})
	}
	return out
}

// starts has the container runtime start a pod's container, with what the claim's CDI file says: that
// is I5. It does not start without the file.
func (k *claimKubelet) starts(p *claimPod) bool {
	w, file := k.n.w, k.n.disk.specs[p.of.uid]
	if file == nil {
		w.logf("%s: %s has no CDI file", k.name, p.name)
		return false
	}
	var spec struct {
		Devices []struct {
			ContainerEdits struct {
				Env []string `json:"env"`
			} `json:"containerEdits"`
		} `json:"devices"`
	}
	if err := json.Unmarshal(file, &spec); err != nil || len(spec.Devices) != 1 {
		w.violate("I5", "the CDI file of claim %s on %s cannot be read: %v: %s", p.of.uid, k.n.name, err, file)
		return false
	}
	env := make(map[string]string)
	for _, line := range spec.Devices[0].ContainerEdits.Env {
		key, value, _ := strings.Cut(line, "=")
		env[key] = value
	}
	sees := slices.Sorted(strings.SplitSeq(strings.ToLower(env["NVIDIA_VISIBLE_DEVICES"]), ","))
	if limit := fmt.Sprint(p.of.need.units * unitMiB); !slices.Equal(sees, slices.Sorted(slices.Values(p.of.on))) || env["GPUMEM_LIMIT_MIB"] != limit {
		w.violate("I5", "%s sees %v and is told of %s MiB, want %v and %s", p.name, sees, env["GPUMEM_LIMIT_MIB"], p.of.on, limit)
	}
	k.n.running[p.uid] = p
	w.counts.Claims++
	w.logf("%s: %s runs", k.name, p.name)
	return true
}

// checkClaimsAtRest is what must hold when nothing has gone wrong for a while: nothing is left of pods
// that are gone (I6), each node tells what its pods have (I5), and no pod waits that fits (I10).
func (w *World) checkClaimsAtRest() {
	for _, n := range w.claims.nodes {
		sum := make(map[string]amount)
		claims := make(map[types.UID]*claim)
		for _, p := range w.claims.pods {
			if p.node == n {
				claims[p.of.uid] = p.of
				if n.running[p.uid] == nil && !n.crooked() {
					w.violate("rest", "%s is bound to %s, and does not run", p.name, n.name)
				}
			}
		}
		for _, c := range sorted(claims) {
			for _, name := range c.on {
				sum[name] = sum[name].plus(c.need)
			}
		}
		prepared := n.prepared()
		for _, uid := range slices.Concat(slices.Sorted(maps.Keys(prepared)), slices.Sorted(maps.Keys(n.disk.specs))) {
			if claims[uid] == nil {
				w.violate("I6", "claim %s is gone, and %s still has it: prepared %v, CDI file %t", uid, n.name, prepared[uid], n.disk.specs[uid] != nil)
			}
		}
		b := w.newBooks(w.api.nodes[n.name])
		for _, d := range n.hardware {
			if id := string(d.UUID); b.requested[id] != sum[strings.ToLower(id)] && !n.crooked() {
				w.violate("I5", "%s tells that pods have %v of %s by claims, and they have %v", n.name, b.requested[id], id, sum[strings.ToLower(id)])
			}
		}
		w.checkWaitingClaims(n, sum)
	}
}

// crooked reports whether a GPU of the node has shrunk: claims that were allocated before may never
// be prepared.
func (n *claimNode) crooked() bool { return len(n.resized) > 0 }

// checkWaitingClaims looks for claims that fit a node by what is true.
func (w *World) checkWaitingClaims(n *claimNode, taken map[string]amount) {
	for _, p := range w.claims.pods {
		if p.of.node != nil || p.deleted {
			continue
		}
		fit := 0
		for _, d := range n.hardware {
			left := amount{units: int(d.Allocatable), cores: allCores}.minus(taken[strings.ToLower(string(d.UUID))])
			if !w.isCordoned(w.api.nodes[n.name], string(d.UUID)) && left.covers(p.of.need) {
				fit++
			}
		}
		if fit >= p.of.gpus {
			w.violate("I10", "%s waits with %v of %d GPUs, and fits %s", p.name, p.of.need, p.of.gpus, n.name)
		}
	}
}

// chargeClaims adds what a node tells that pods have by claims.
func (b *books) chargeClaims(inv decoded) {
	for _, g := range inv.Given {
		if _, name, _ := strings.Cut(g.Pod, "/"); g.Pod != "" {
			for id, a := range b.given[g.UID] {
				b.charge(&spec{name: name, uid: g.UID}, id, a)
			}
		}
	}
}
