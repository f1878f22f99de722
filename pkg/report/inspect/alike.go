package inspect

import (
	"slices"
	"time"
)

// Alike groups rows that have the same key, in the order of their first rows.
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

// WaitGroup is pods that wait alike, by the first of them.
type WaitGroup struct {
	Wait
	Count  int
	Oldest time.Time // when the oldest was created; zero when not known
}

// WaitingAlike puts pods of one controller that wait for the same, for the same reason, together.
// A pod without a controller, or that is nominated to a node, is alone.
func (r Report) WaitingAlike() (groups []WaitGroup) {
	type key struct {
		namespace, owner, reason string
		units                    int64
		gpus, cores              int
		inShares                 bool
		alone                    string // the pod, where no other is like it
	}
	for _, same := range Alike(r.Waiting, func(w Wait) key {
		k := key{w.Namespace, w.Owner, w.Why(), int64(w.Units), w.GPUs, w.Cores, w.InShares, ""}
		if w.Owner == "" || w.Nominated != "" {
			k.alone = w.Name + "/" + w.UID
		}
		return k
	}) {
		oldest := slices.MinFunc(same, func(a, b Wait) int { return a.Created.Compare(b.Created) })
		groups = append(groups, WaitGroup{Wait: same[0], Count: len(same), Oldest: oldest.Created})
	}
	return groups
}

// Needs is what the pod asks for, of all its GPUs together. Shares have no size before they are of a GPU.
func (w Wait) Needs(unitMiB int64) Memory {
	if w.InShares {
		return Memory{Units: w.Units, InShares: true}
	}
	return Memory{Units: w.Units, MiB: int64(w.Units) * unitMiB}
}

// UnitMiB returns the unit of all nodes that have one: only by it can a pod without a node be
// measured. It is 0 where nodes differ.
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
