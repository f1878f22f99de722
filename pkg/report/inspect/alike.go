package inspect

import (
	"slices"
	"time"
)

// Alike groups rows with the same key. The groups have the order of their first rows.
func Alike[R any, K comparable](rows []R, key func(R) K) (groups [][]R) {
	at := make(map[K]int)
	for _, row := range rows {
		k := key(row)
		i, known := at[k]
		if !known {
			i = len(groups)
			at[k] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], row)
	}
	return groups
}

// WaitGroup is a group of waiting pods with the same controller, request and reason, represented by the
// first of them.
type WaitGroup struct {
	WaitingPod
	Count  int
	Oldest time.Time // creation time of the oldest pod; zero if unknown
}

// WaitingAlike groups the waiting pods of a controller that have the same request and reason. A pod that
// has no controller, or is nominated to a node, forms its own group.
func (r Report) WaitingAlike() (groups []WaitGroup) {
	type key struct {
		namespace, owner, reason string
		units                    int64
		gpus, cores              int
		inShares                 bool
		ungroupedPod             string // identifies a pod that forms its own group
	}
	for _, same := range Alike(r.Waiting, func(w WaitingPod) key {
		k := key{w.Namespace, w.Owner, w.Explain(), int64(w.Units), w.GPUs, w.Cores, w.InShares, ""}
		if w.Owner == "" || w.Nominated != "" {
			k.ungroupedPod = w.Name + "/" + w.UID
		}
		return k
	}) {
		oldest := slices.MinFunc(same, func(a, b WaitingPod) int { return a.Created.Compare(b.Created) })
		groups = append(groups, WaitGroup{WaitingPod: same[0], Count: len(same), Oldest: oldest.Created})
	}
	return groups
}

// RequestedMemory returns the requested memory, summed over the pod's GPUs. Shares have no size in MiB until their
// GPU is known.
func (w WaitingPod) RequestedMemory(unitMiB int64) Memory {
	if w.InShares {
		return Memory{Units: w.Units, InShares: true}
	}
	return Memory{Units: w.Units, MiB: int64(w.Units) * unitMiB}
}

// UnitMiB returns the nodes' common unit, or 0 if their units differ. It ignores nodes without a unit. The size of a
// waiting pod's request is known only with a common unit.
func (r Report) UnitMiB() (unit int64) {
	for _, n := range r.Nodes {
		switch {
		case n.UnitMiB == 0 || n.UnitMiB == unit:
		case unit == 0:
			unit = n.UnitMiB
		default:
			return 0
		}
	}
	return unit
}
