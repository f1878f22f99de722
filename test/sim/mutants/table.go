package main

// mutant is one fault: a text of a file and what stands there instead.
type mutant struct {
	name, file, old, new string
}

// table has mistakes that systems of this kind have made, and the ones that this
// one was close to. Those that would show in one of thousands of runs at best are
// left to unit tests.
var table = []mutant{
	{
		"free at deletionTimestamp", "pkg/controller/books.go",
		"case api.Terminal(pod):", "case api.Terminal(pod) || pod.DeletionTimestamp != nil:",
	},
	{
		"key by name", "pkg/controller/books.go",
		"isPod && old.UID != pod.UID {", "isPod && old.Name != pod.Name {",
	},
	{
		"unsigned remainder", "pkg/placement/node.go",
		"return max(0, d.Capacity-d.Foreign-d.Requested)", "return gpu.Units(uint32(d.Capacity - d.Foreign - d.Requested))",
	},
	{
		"equal split", "pkg/placement/node.go",
		"n.Devices[i].Device = d\n", "n.Devices[i].Device = d\n\t\tn.Devices[i].Capacity = inv.Capacity() / gpu.Units(len(inv.Devices))\n",
	},
	{
		"lock released in between", "pkg/cache/cache.go",
		"	c.set(on, ref.UID, &pod{\n		Holding: placement.Holding{Pod: ref, Request: req, Assignment: chosen},",
		"	c.mu.Unlock()\n	time.Sleep(20 * time.Millisecond)\n	c.mu.Lock()\n	c.set(on, ref.UID, &pod{\n		Holding: placement.Holding{Pod: ref, Request: req, Assignment: chosen},",
	},
	{
		"a forgotten Forget", "pkg/extender/extender.go",
		"e.Cache.RefusePod(ref.UID, decided)", "_ = decided",
	},
	{
		"unknown outcome is a refusal", "pkg/extender/extender.go",
		"case e.Cluster.Refused(cause):", "case true:",
	},
	{
		"bindings not counted", "pkg/cache/cache.go",
		"return len(p.bindings) == 0", "return true",
	},
	{
		"swap not corrected", "pkg/deviceplugin/reconcile.go",
		"if !p.claim(ref) {", "if true || !p.claim(ref) {",
	},
	{
		"swap corrected with a gap", "pkg/allocation/reconcile.go",
		"if moving > 1 || moving == 1 && !c.Moves() {", "if false {",
	},
	{
		"confusable rule off", "pkg/cache/decide.go",
		"return !h.Settled && !h.Nominated &&", "return false && !h.Nominated &&",
	},
	{
		"settled ignored", "pkg/api/pod.go",
		"return pod.Status.StartTime != nil || Terminal(pod)", "return Terminal(pod)",
	},
	{
		"init containers summed", "pkg/placement/request.go",
		"highest = max(highest, sidecars+amount(c))\n", "apps += amount(c)\n",
	},
	{
		"ghost's pods dropped", "pkg/cache/cache.go",
		"if n.inventory != nil || len(n.pods[on]) > 0 || len(n.pods[coming]) > 0 || len(n.expected) > 0 {", "if n.inventory != nil {",
	},
	{
		"read though it has gone", "pkg/cache/read.go",
		"if r.gone[h.Pod.UID] || ok", "if ok",
	},
	{
		"stale read beats the watch", "pkg/cache/read.go",
		" || ok && !p.assumed {", " {",
	},
	{
		"entered though it has ended", "pkg/extender/reads.go",
		"if api.Terminal(pod) {", "if false {",
	},
	{
		"retry chooses anew", "pkg/cache/cache.go",
		"			p.bindings = append(p.bindings, now)\n			return p.Assignment, nil\n",
		"			p.bindings = append(p.bindings, now)\n			chosen, _ := placement.Choose(fallback, req, *c.node(nodeName).view.Load())\n			return chosen, nil\n",
	},
	{
		"short preference", "pkg/deviceplugin/plugin.go",
		"ContainerPreferredAllocationResponse{DeviceIDs: plain(ids)})", "ContainerPreferredAllocationResponse{DeviceIDs: plain(ids[1:])})",
	},
	{
		"unhealthy GPU offered", "pkg/placement/fit.go",
		"case !d.Healthy:\n		return Unhealthy", "case false:\n		return Unhealthy",
	},
	{
		"unplaced pods not counted", "pkg/placement/node.go",
		"			n.Unattributed = append(n.Unattributed, h)\n", "",
	},
	{
		"overtaken and sent again", "pkg/cache/cache.go",
		"if !p.assumed || p.read {", "if true {",
	},
	{
		"nominated pods forgotten", "pkg/cache/cache.go",
		"WithNominated(nominated)", "WithNominated(nil)",
	},
	{
		"filter reserves", "pkg/extender/filter.go",
		"return e.Cache.Refused(node.name, q.Question)", "_, _ = e.Cache.AssumePod(q.Pod, node.name, q.Request, e.Policy, e.Now()); return nil",
	},
	{
		"a leader is not caught up", "pkg/extender/extender.go",
		"return e.catchUp(ctx, nodeName)", "return nil",
	},
	{
		"never woken", "pkg/extender/wake.go",
		"if err := e.Cluster.Wake(ctx, p.Pod); err != nil {", "if err := error(nil); err != nil {",
	},
	{
		"who leads is not asked", "pkg/extender/turn.go",
		`if last == nil || leader == "" || leader != last.leader || now.Sub(last.begun) < handover {`, "if last == nil {",
	},
	{
		"a handover is over at once", "pkg/extender/turn.go",
		"now.Sub(last.begun) < handover {", "false {",
	},
	{
		"a watch behind is believed", "pkg/extender/turn.go",
		"if done || !told(l.from) {", "if done {",
	},
	{
		"a guess beats the read", "pkg/cache/read.go",
		"ok && !p.assumed {", "ok && (p != nil || !p.assumed) {",
	},
	{
		"waking off, some nodes asked", "test/sim/extender.go",
		"e.asker.WakeWaiting(context.Background())", "if !e.w.cfg.Samples {\n\t\t\t\te.asker.WakeWaiting(context.Background())\n\t\t\t}",
	},
	{
		"waking off, all nodes asked", "test/sim/extender.go",
		"e.asker.WakeWaiting(context.Background())", "if e.w.cfg.Samples {\n\t\t\t\te.asker.WakeWaiting(context.Background())\n\t\t\t}",
	},
	{
		"equals evicted", "pkg/preemption/preempt.go",
		"h.Request.Priority >= req.Priority", "h.Request.Priority > req.Priority",
	},
	{
		"API call under the lock", "pkg/deviceplugin/reconcile.go",
		"	if err := p.pods.Correct(ctx, ref, is, inv); err != nil {", "	p.mu.Lock()\n	err := p.pods.Correct(ctx, ref, is, inv)\n	p.mu.Unlock()\n	if err != nil {",
	},
	{
		"cores by the node's sum", "pkg/placement/fit.go",
		"case !n.room(d).covers(units, cores):", "case !n.room(d).covers(units, 0), n.freeFor(r).cores < cores:",
	},
	{
		"cordoned GPUs take pods", "pkg/api/codec.go",
		"return Cordon(inv, n.CordonedGPUs(node)), nil", "return inv, nil",
	},
	{
		"cordoned GPUs take unplaced pods", "pkg/allocation/tenants.go",
		"if slices.Contains(b.Cordoned, d.UUID) {", "if d.UUID == \"\" {",
	},
	{
		"foreign use offered", "pkg/placement/node.go",
		"return max(0, d.Capacity-d.Foreign-d.Requested)", "return max(0, d.Capacity-d.Requested)",
	},
	{
		"gpushare's index not read", "pkg/allocation/tenants.go",
		"t.written = s.byIndex(p)", "_ = s.byIndex",
	},
	{
		"panic on a bad annotation", "pkg/api/pod.go",
		"	if err != nil || count < 1 || count > 64 {", "	if err != nil {\n		panic(err)\n	}\n	if count < 1 || count > 64 {",
	},
}
