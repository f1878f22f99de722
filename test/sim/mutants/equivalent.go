package main

// equivalent are mutants that change nothing that anybody can see, by their names, and why.
var equivalent = map[string]string{
	"pkg/core/allocation/podstate.go sharePlans: t.Assignment = t.actual claim(t.actual) => claim(t.actual); t.Assignment = t.actual":                                                                               "claim takes from what is left alone",
	"pkg/core/cache/cache.go AddPod: c.set(coming, h.Pod.UID, nil) c.set(on, h.Pod.UID, &pod{Holding: h, node: nodeName}) => c.set(on, h.Pod.UID, &pod{Holding: h, node: nodeName}); c.set(coming, h.Pod.UID, nil)": "both are under the lock, and one who reads in between decides nothing: Bind asks again",
	"pkg/core/cache/nodes.go node: s.all[name] = n s.known.Store(nil) => s.known.Store(nil); s.all[name] = n":                                                                                                       "who finds nothing known waits for the lock, under which both are",
	"pkg/core/cache/state.go offer: s.publish(n) s.dropIfEmpty(n) => s.dropIfEmpty(n); s.publish(n)":                                                                                                                "a node that is dropped is published for nobody",
	"pkg/core/ranking/rank.go Rank: if fitting++; alone == nil || e.alone(alone) < 0 { => if fitting++; alone == nil || e.alone(alone) <= 0 {":                                                                      "alone orders by names in the end, so that no two nodes are equal",
}
