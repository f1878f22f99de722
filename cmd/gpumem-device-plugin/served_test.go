package main

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/claims"
	"github.com/gpumem/gpumem/pkg/node/nodeapi"
)

// While pods or claims remain, a node keeps its API and unit, whatever its label and the flags request, and the
// message contains the remedy. Pods that request other resources change nothing.
func TestANodeServesTheSameUntilNothingIsLeft(t *testing.T) {
	device := func(ds ...gpu.Device) []gpu.Device { return ds }
	memory := gpu.Inventory{UnitMiB: 512, Devices: device(gpu.Device{UUID: "GPU-a", Allocatable: 14})}
	larger := gpu.Inventory{UnitMiB: 1024, Devices: memory.Devices}
	shares := gpu.Inventory{Devices: device(gpu.Device{UUID: "GPU-a", Allocatable: 10, ShareMiB: 1490})}
	byClaims := gpu.Inventory{UnitMiB: 512, Devices: device(gpu.Device{UUID: "GPU-a", Allocatable: 14, Status: gpu.Status{ByClaims: true}})}
	prepared := map[types.UID]claims.Claim{
		"u": {Namespace: "ml", Name: "c", Shares: []claims.Share{{MiB: 512}}},
		"v": {Namespace: "ml", Name: "b", Shares: []claims.Share{{MiB: 512}}},
	}
	inShares := map[types.UID]claims.Claim{"u": {Namespace: "ml", Name: "c", Shares: []claims.Share{{Shares: 3}}}}
	some := []string{"ml/p"}
	const mem, share = "gpumem.dev/gpu-mem", "gpumem.dev/gpu-share"
	wantsMemory, wantsShares, wantsClaims, claimsInShares := served{unitMiB: 512}, served{api: api.InShares}, served{api.ByClaims, 512}, served{api: api.ByClaims}
	for name, tc := range map[string]struct {
		flags     string
		label     string
		seen      nodeapi.Snapshot
		prepared  map[types.UID]claims.Claim
		want      served
		unchanged string
	}{
		"a new node":               {want: wantsMemory},
		"the API server is away":   {want: wantsMemory},
		"a label without its flag": {label: api.ByClaims, want: wantsMemory},

		"the same unit":                {seen: nodeapi.Snapshot{Offered: memory, Holders: some}, want: wantsMemory},
		"another unit":                 {seen: nodeapi.Snapshot{Offered: larger, Holders: []string{"ml/a", "ml/b"}}, want: served{unitMiB: 1024}, unchanged: "unitMiB is 512 now, and the node keeps units of 1024 MiB and takes no new pods, because pods have such units: ml/a, ml/b. Drain the node, or set unitMiB back to 1024."},
		"another unit, without pods":   {seen: nodeapi.Snapshot{Offered: larger}, want: wantsMemory},
		"nothing was offered":          {seen: nodeapi.Snapshot{Offered: gpu.Inventory{UnitMiB: 1024}, Holders: some}, want: wantsMemory},
		"another unit and another API": {"--shares", api.InShares, nodeapi.Snapshot{Offered: larger, Holders: some}, nil, served{unitMiB: 1024}, "the node keeps serving " + mem + " instead of " + share + " until these have ended: ml/p"},

		"labelled for shares":                       {flags: "--shares", label: api.InShares, want: wantsShares},
		"labelled for shares, and empty":            {"--shares", api.InShares, nodeapi.Snapshot{Offered: memory}, nil, wantsShares, ""},
		"labelled for shares, with pods":            {"--shares", api.InShares, nodeapi.Snapshot{Offered: memory, Holders: some}, nil, wantsMemory, "the node keeps serving " + mem + " instead of " + share + " until these have ended: ml/p"},
		"labelled, with pods of a plugin before":    {"--shares", api.InShares, nodeapi.Snapshot{Holders: some}, nil, wantsMemory, "the node keeps serving " + mem + " instead of " + share + " until these have ended: ml/p"},
		"labelled, with pods that hold nothing":     {"--shares", api.InShares, nodeapi.Snapshot{Offered: shares, Holders: some}, nil, wantsShares, ""},
		"the label is gone":                         {"--shares", "", nodeapi.Snapshot{Offered: shares}, nil, wantsMemory, ""},
		"the label is gone, with pods":              {"--shares", "", nodeapi.Snapshot{Offered: shares, Sharers: some}, nil, wantsShares, "the node keeps serving " + share + " instead of " + mem + " until these have ended: ml/p"},
		"the flag is gone, with pods":               {"", api.InShares, nodeapi.Snapshot{Offered: shares, Sharers: some}, nil, wantsShares, "the node keeps serving " + share + " instead of " + mem + " until these have ended: ml/p"},
		"the inventory is gone, with pods":          {"--shares", "", nodeapi.Snapshot{Sharers: some}, nil, wantsShares, "the node keeps serving " + share + " instead of " + mem + " until these have ended: ml/p"},
		"without the label, pods that hold nothing": {"--shares", "", nodeapi.Snapshot{Offered: memory, Sharers: some}, nil, wantsMemory, ""},
		"in shares as before":                       {"--shares", api.InShares, nodeapi.Snapshot{Offered: shares, Sharers: some}, nil, wantsShares, ""},

		"labelled for claims":                     {flags: "--claims", label: api.ByClaims, want: wantsClaims},
		"by claims as before":                     {"--claims", api.ByClaims, nodeapi.Snapshot{Offered: byClaims}, prepared, wantsClaims, ""},
		"labelled for claims, with pods":          {"--claims", api.ByClaims, nodeapi.Snapshot{Offered: memory, Holders: some}, nil, wantsMemory, "the node keeps serving " + mem + " instead of claims to " + mem + " until these have ended: ml/p"},
		"labelled for claims, with pods' shares":  {"--claims --shares", api.ByClaims, nodeapi.Snapshot{Offered: shares, Sharers: some}, nil, wantsShares, "the node keeps serving " + share + " instead of claims to " + mem + " until these have ended: ml/p"},
		"no label, and prepared claims":           {"--claims", "", nodeapi.Snapshot{Offered: byClaims}, prepared, wantsClaims, "the node keeps serving claims to " + mem + " instead of " + mem + " until these have ended: ml/b, ml/c"},
		"no label, and no claim is left":          {flags: "--claims", seen: nodeapi.Snapshot{Offered: byClaims}, want: wantsMemory},
		"by claims, with pods that hold nothing":  {"--claims", api.ByClaims, nodeapi.Snapshot{Offered: byClaims, Holders: some}, prepared, wantsClaims, ""},
		"by claims, and all are given back":       {"--claims", api.ByClaims, nodeapi.Snapshot{Offered: byClaims, Holders: some}, nil, wantsClaims, ""},
		"an inventory older than a pod":           {"--claims", api.ByClaims, nodeapi.Snapshot{Offered: byClaims, Holders: some, Admitted: true}, nil, wantsMemory, "the node keeps serving " + mem + " instead of claims to " + mem + " until these have ended: ml/p"},
		"an inventory older than a pod's shares":  {"--claims --shares", api.ByClaims, nodeapi.Snapshot{Offered: byClaims, Sharers: some, Admitted: true}, nil, wantsShares, "the node keeps serving " + share + " instead of claims to " + mem + " until these have ended: ml/p"},
		"claims and a pod at once":                {"--claims", api.ByClaims, nodeapi.Snapshot{Offered: byClaims, Holders: some, Admitted: true}, prepared, wantsClaims, ""},
		"claims are off, and pods have some":      {"", api.ByClaims, nodeapi.Snapshot{Offered: byClaims, Claimers: some}, nil, wantsClaims, "the node keeps serving claims to " + mem + " instead of " + mem + " until these have ended: ml/p"},
		"claims are off, and no pod has any":      {"", api.ByClaims, nodeapi.Snapshot{Offered: byClaims}, nil, wantsMemory, ""},
		"claims to shares":                        {flags: "--claims --claims-in-shares", label: api.ByClaims, want: claimsInShares},
		"claims to shares, with claims to memory": {"--claims --claims-in-shares", api.ByClaims, nodeapi.Snapshot{Offered: byClaims}, prepared, wantsClaims, "the node keeps serving claims to " + mem + " instead of claims to " + share + " until these have ended: ml/b, ml/c"},
		"claims to memory, with claims to shares": {"--claims", api.ByClaims, nodeapi.Snapshot{Offered: byClaims}, inShares, claimsInShares, "the node keeps serving claims to " + share + " instead of claims to " + mem + " until these have ended: ml/c"},
	} {
		var o options
		if err := o.parse(strings.Fields("--node-name=n1 --unit-mib=512 "+tc.flags), io.Discard); err != nil {
			t.Fatal(err)
		}
		c, err := o.config()
		if err != nil {
			t.Fatal(err)
		}
		tc.seen.Labels = map[string]string{"gpumem.dev/api": tc.label}
		is, unchanged := c.choose(tc.seen, tc.prepared)
		if is != tc.want || unchanged != tc.unchanged {
			t.Errorf("%s: %+v, %q; want %+v, %q", name, is, unchanged, tc.want, tc.unchanged)
		}
		if err := c.canServe(is, tc.seen.Claimers); (err != nil) != (is.api == api.ByClaims && !strings.Contains(tc.flags, "--claims")) {
			t.Errorf("%s: it can serve claims: %v", name, err)
		}
		if changes := c.wants(tc.label) != is; changes != (unchanged != "") {
			t.Errorf("%s: is to change: %t", name, changes)
		}
	}
}

// A node switches after its label requests it and nothing has been allocated for a while. It does not switch
// while the last claim remains, or for a label that existed only for a moment.
func TestWhenWhatANodeServesIsReplaced(t *testing.T) {
	type state struct {
		labelled bool
		left     int
	}
	for name, test := range map[string]struct {
		after map[time.Duration]state // state from this time on
		want  time.Duration           // 0 means never
	}{
		"nothing changes":              {map[time.Duration]state{0: {true, 0}}, 0},
		"nothing was there":            {map[time.Duration]state{0: {true, 0}, time.Minute: {false, 0}}, time.Minute + drained},
		"the last claim is waited for": {map[time.Duration]state{0: {false, 1}, time.Minute: {false, 0}}, time.Minute + drained},
		"one more came just then":      {map[time.Duration]state{0: {false, 0}, time.Second: {false, 1}, time.Minute: {false, 0}}, time.Minute + drained},
		"the label is put back":        {map[time.Duration]state{0: {false, 0}, time.Second: {true, 0}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				now := func() state {
					at := slices.Max(slices.Collect(func(yield func(time.Duration) bool) {
						for at := range test.after {
							if at <= time.Since(begin) && !yield(at) {
								return
							}
						}
					}))
					return test.after[at]
				}
				var changed atomic.Pointer[chan struct{}] // closed and replaced
				changed.Store(new(make(chan struct{})))
				for at := range test.after {
					if at > 0 {
						time.AfterFunc(at, func() { close(*changed.Swap(new(make(chan struct{})))) })
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				got := replaced(ctx,
					func() (bool, <-chan struct{}) { return !now().labelled, *changed.Load() },
					func() (int, <-chan struct{}) { return now().left, nil })
				if got != (test.want > 0) || got && time.Since(begin) != test.want {
					t.Errorf("left: %t after %s, want after %s", got, time.Since(begin), test.want)
				}
			})
		})
	}
}
