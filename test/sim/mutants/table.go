package main

// mutant is one fault: a text of a file and what stands there instead. A unit test of
// the file's package has to find it, or of another (as folder:test), or the simulation.
type mutant struct{ name, file, old, new, test string }

const simulation = "" // instead of a test

// table has mistakes that systems of this kind have made, and the ones that this
// one was close to. Those that would show in one of thousands of runs at best are
// left to unit tests.
var table = []mutant{
	{
		"free at deletionTimestamp", "pkg/scheduler/controller/feeder.go",
		"case api.Terminal(pod):", "case api.Terminal(pod) || pod.DeletionTimestamp != nil:", simulation,
	},
	{
		"key by name", "pkg/scheduler/controller/feeder.go",
		"isPod && old.UID != pod.UID {", "isPod && old.Name != pod.Name {", simulation,
	},
	{
		"unsigned remainder", "pkg/core/placement/node.go",
		"return max(0, d.Allocatable-d.Foreign-d.Requested)", "return gpu.Units(uint32(d.Allocatable - d.Foreign - d.Requested))", simulation,
	},
	{
		"equal split", "pkg/core/placement/node.go",
		"n.Devices[i].Device = &inv.Devices[i]\n", "d := inv.Devices[i]\n\t\td.Allocatable = inv.Allocatable() / gpu.Units(len(inv.Devices))\n\t\tn.Devices[i].Device = &d\n", simulation,
	},
	{
		"lock released in between", "pkg/core/cache/cache.go",
		"	c.set(on, ref.UID, &Pod{\n		Holding: placement.Holding{Pod: ref, Request: req, Assignment: chosen},",
		"	c.mu.Unlock()\n	time.Sleep(20 * time.Millisecond)\n	c.mu.Lock()\n	c.set(on, ref.UID, &Pod{\n		Holding: placement.Holding{Pod: ref, Request: req, Assignment: chosen},", simulation,
	},
	{
		"a forgotten Forget", "pkg/scheduler/binder/binder.go",
		"b.Cache.RefusePod(ref.UID, decided)", "_ = decided", simulation,
	},
	{
		"expected after a refused Bind", "pkg/scheduler/binder/binder.go",
		"		b.Cache.Unexpect(ref.UID, b.Now())\n", "", "pkg/scheduler/extender:TestHowLongAPodIsExpected",
	},
	{
		"unknown outcome is a refusal", "pkg/scheduler/binder/binder.go",
		"case b.Cluster.Refused(cause):", "case true:", simulation,
	},
	{
		"bindings not counted", "pkg/core/cache/cache.go",
		"return len(p.bindings) == 0", "return true", simulation,
	},
	{
		"swap not corrected", "pkg/node/reconcile/reconcile.go",
		"	case !claimed:\n", "	case c != nil || !claimed:\n", simulation,
	},
	{
		"what a pod that is gone was given is kept", "pkg/node/nodestate/state.go",
		"return g.Pod == given.Pod && g.Container.Name == given.Container.Name &&", "return false && g.Pod == given.Pod && g.Container.Name == given.Container.Name &&", "TestWhatAPodThatIsGoneWasGivenIsNotKept",
	},
	{
		"another's grant replaces a container's own", "pkg/node/nodestate/state.go",
		"slices.ContainsFunc(g.Slots, func(id gpu.SlotID) bool { return slices.Contains(given.Slots, id) })", "len(g.Slots) > 0 && len([]gpu.SlotID{}) == 0", "TestWhatAContainerWasGivenIsNotForgottenForAnother",
	},
	{
		"another's grant is a pod's own", "pkg/node/nodestate/state.go",
		"g.number <= before && g.OfAnother(held)", "g.number <= before && g.OfAnother(nil)", "TestWhatAnotherHadWhileThePodWaitedIsNotItsOwn",
	},
	{
		"an old answer undoes a grant", "pkg/node/nodestate/state.go",
		"g.number <= before && g.OfAnother(held)", "g.OfAnother(held)", "TestAnAnswerFromBeforeAGrantDoesNotUndoIt",
	},
	{
		"the owner's word is shared out", "pkg/node/nodestate/state.go",
		"if !known || !pod.Admitted {", "if true || !known {", "TestWhatAnOwnerWritesIsNotSharedOut",
	},
	{
		"a plan is not brought up to date", "pkg/node/reconcile/reconcile.go",
		"		r.state.Wrote(ref, is)\n", "", "TestASecondSwapIsCorrectedToo",
	},
	{
		"swap corrected with a gap", "pkg/core/allocation/reconcile.go",
		"if moving > 1 || moving == 1 && !c.Moves() {", "if false {", simulation,
	},
	{
		"confusable rule off", "pkg/core/decide/decide.go",
		"return !h.Admitted && !h.Nominated &&", "return false && !h.Nominated &&", simulation,
	},
	{
		"explain leaves confusable pods out", "pkg/report/inspect/chance.go",
		"own = cmp.Or(Overdraws(pod.Request, n), refused)", "own = Overdraws(pod.Request, n)", "TestAChanceIsWhatBecomesOfABind",
	},
	{
		"explain assumes a policy", "pkg/report/inspect/chance.go",
		"n = decide.Reserved(n, pod.Pod, pod.Request, f.Policy)", "n = decide.Reserved(n, pod.Pod, pod.Request, placement.Binpack)", "TestAReportSaysWhatTheExtenderDecides",
	},
	{
		"commands assume a policy", "pkg/cli/cmdutil/factory.go",
		"facts.Policy = cmp.Or(policy, cluster.DefaultPolicy)", "facts.Policy = cmp.Or(cluster.DefaultPolicy, policy)", "pkg/cli:TestCommandsAskByTheClustersPolicy",
	},
	{
		"settled ignored", "pkg/kube/api/pod.go",
		"return pod.Status.StartTime != nil || Terminal(pod)", "return Terminal(pod)", simulation,
	},
	{
		"init containers summed", "pkg/core/placement/request.go",
		"		return max(its, theirs)\n", "		return its + theirs\n", simulation,
	},
	{
		"ghost's pods dropped", "pkg/core/cache/state.go",
		"if n.inventory != nil || len(n.pods[on])+len(n.pods[coming])+len(n.pods[expected]) > 0 {", "if n.inventory != nil {", simulation,
	},
	{
		"read though it has gone", "pkg/core/cache/read.go",
		"if r.gone[h.Pod.UID] || ok", "if ok", simulation,
	},
	{
		"stale read beats the watch", "pkg/core/cache/read.go",
		" || ok && !p.Assumed {", " {", simulation,
	},
	{
		"entered though it has ended", "pkg/scheduler/binder/reads.go",
		"if api.Terminal(pod) {", "if false {", simulation,
	},
	{
		"retry chooses anew", "pkg/core/cache/cache.go",
		"			p.bindings = append(p.bindings, now)\n			return p.Assignment, nil\n",
		"			p.bindings = append(p.bindings, now)\n			chosen, _ := c.all[nodeName].decide(ref, req, fallback)\n			return chosen, nil\n", simulation,
	},
	{
		"short preference", "pkg/node/deviceplugin/server.go",
		"ContainerPreferredAllocationResponse{DeviceIDs: plain(ids)})", "ContainerPreferredAllocationResponse{DeviceIDs: plain(ids[1:])})", simulation,
	},
	{
		"unhealthy GPU offered", "pkg/core/placement/fit.go",
		"case !d.Status.TakesPods():\n		return Unhealthy", "case false:\n		return Unhealthy", simulation,
	},
	{
		"unplaced pods not counted", "pkg/core/placement/node.go",
		"			n.Unattributed = append(n.Unattributed, h)\n", "", simulation,
	},
	{
		"overtaken and sent again", "pkg/core/cache/state.go",
		"if !p.Assumed || p.read {", "if true {", simulation,
	},
	{
		"nominated pods forgotten", "pkg/core/cache/state.go",
		"WithNominated(nominated)", "WithNominated(nil)", simulation,
	},
	{
		"filter reserves", "pkg/scheduler/extender/filter.go",
		"return e.Cache.Refused(node.name, q.Question)", "_, _ = e.Cache.AssumePod(q.Pod, node.name, q.Request, e.Policy, e.Now()); return nil", simulation,
	},
	{
		"a leader is not caught up", "pkg/scheduler/binder/binder.go",
		"return b.catchUp(ctx, nodeName)", "return nil", simulation,
	},
	{
		"never woken", "pkg/scheduler/waker/waker.go",
		"if err := queue.Wake(ctx, p.Pod); err != nil {", "if err := error(nil); err != nil {", simulation,
	},
	{
		"a pod is left after a lost binding", "pkg/scheduler/waker/waker.go",
		"|| p.Sampled || p.Elsewhere {", "|| p.Sampled {", "pkg/scheduler/extender:TestAPodIsWokenWhenItsBindingHasNotLanded",
	},
	{
		"a pod is woken while it may be bound", "pkg/scheduler/waker/waker.go",
		"_, _, known := b.Cache.Where(uid); known {", "_, _, known := b.Cache.Where(uid); known && false {", "pkg/scheduler/extender:TestAPodIsWokenWhenItsBindingHasNotLanded",
	},
	{
		"who waited before is not taken over", "pkg/scheduler/waker/waker.go",
		"		w.takeOver(b, queue)\n", "", "pkg/scheduler/extender:TestPodsThatAnotherRefusedAreWoken",
	},
	{
		"a sample is taken for all nodes", "pkg/scheduler/extender/sampled.go",
		"return asked < all && asked == find(all)", "return asked < all && asked == find(all) && false", "TestAPodIsWokenUntilAllNodesWereAskedAbout",
	},
	{
		"what is expected refuses a pod", "pkg/scheduler/extender/filter.go",
		"if len(fit) == 0 && q.Expecting {", "if len(fit) == 0 && q.Expecting && false {", "TestWhatIsExpectedRefusesNothing",
	},
	{
		"a pod is expected nowhere", "pkg/scheduler/extender/filter.go",
		"	e.Cache.Expect(q.Pod, fit[0].name, q.Request, q.Fallback, now)\n", "", "TestABurstIsPlacedWithoutRefusals",
	},
	{
		"who leads is not asked", "pkg/scheduler/binder/turn.go",
		`if last == nil || leader == "" || leader != last.leader || now.Sub(last.begun) < Handover {`, "if last == nil {", simulation,
	},
	{
		"a handover is over at once", "pkg/scheduler/binder/turn.go",
		"now.Sub(last.begun) < Handover {", "false {", simulation,
	},
	{
		"a watch behind is believed", "pkg/scheduler/binder/turn.go",
		"if done || !shown(l.from) {", "if done {", simulation,
	},
	{
		"each Bind reads the Lease", "pkg/scheduler/binder/turn.go",
		`"lead after silence "+strconv.Itoa(silences)`, `fmt.Sprintf("%p", &silences)+strconv.Itoa(silences)`, "pkg/scheduler/extender:TestBindsThatComeAtOnceWaitForOneRead",
	},
	{
		"each Bind reads the pods of its node", "pkg/scheduler/binder/turn.go",
		`"pods of "+node+" since "+lead.from`, `fmt.Sprintf("%p", &err)`, "pkg/scheduler/extender:TestBindsThatComeAtOnceWaitForOneRead",
	},
	{
		"a guess beats the read", "pkg/core/cache/read.go",
		"ok && !p.Assumed {", "ok && (p != nil || !p.Assumed) {", simulation,
	},
	{
		"a leader sends until another leads", "pkg/scheduler/lease/lease.go",
		"!l.renewed.IsZero() && passed < l.valid", "!l.renewed.IsZero() && passed < 1000*l.valid", simulation,
	},
	{
		"the Lease is given back at once", "pkg/scheduler/lease/lease.go",
		"		l.drain()\n", "", simulation,
	},
	{
		"a Lease that is given back counts", "pkg/scheduler/lease/lease.go",
		"		l.set(time.Time{}, 0, true)\n", "", "TestTheLeaseIsGivenBackWhenAllIsAnswered",
	},
	{
		"a lead goes on though others have led", "pkg/scheduler/lease/lease.go",
		" || turns != l.turns", "", "TestALeadIsAnotherOnceOthersHaveLed",
	},
	{
		"a renewal counts from its answer", "pkg/scheduler/lease/lease.go",
		"	sent := l.now()\n	err := send()\n", "	err := send()\n	sent := l.now()\n", "TestWhenAProcessDecidesAlone",
	},
	{
		"what may still land is not waited for", "pkg/scheduler/binder/end.go",
		"	<-time.After(left)\n", "	_ = left\n", simulation,
	},
	{
		"preemption clears a second GPU", "pkg/scheduler/cycle/view.go",
		"&& d.Binder.Cache.Heard(h.Pod.UID) && !h.Request.Empty()", "&& d.Binder.Cache.Heard(h.Pod.UID) && !h.Request.Empty() && d.Binder.Cluster.Pod(h.Pod.Namespace, h.Pod.Name) != nil", simulation,
	},
	{
		"two handlers agree", "pkg/scheduler/cycle/view.go",
		"	if diff.none() {", "	if diff.none() || known != nil {", "TestRefusesForThePodsThatKubeSchedulerHas",
	},
	{
		"what was compared once counts", "pkg/scheduler/cycle/view.go",
		"atomic.LoadInt64(&known.State.Mark) == generation", "atomic.LoadInt64(&known.State.Mark) != 0", "TestComparesAgainWhenOneHasChanged",
	},
	{
		"a binding that may land is given away", "pkg/scheduler/cycle/view.go",
		"!there[h.Pod.UID] && d.Binder.Cache.Heard(h.Pod.UID)", "!there[h.Pod.UID]", "TestRefusesForThePodsThatKubeSchedulerHas",
	},
	{
		"a pod that was not heard of does not count", "pkg/scheduler/cycle/view.go",
		"diff.come = append(diff.come, h)", "_ = h", "TestRefusesForThePodsThatKubeSchedulerHas",
	},
	{
		"a pod that is leaving counts", "pkg/scheduler/cycle/view.go",
		"case d.boundTo(pod, node.Name):", "default:", "TestRefusesForThePodsThatKubeSchedulerHas",
	},
	{
		"a nomination is not seen", "pkg/scheduler/cycle/view.go",
		"diff.nominated = append(diff.nominated, h)", "_ = h", "TestRefusesForThePodsThatKubeSchedulerHas",
	},
	{
		"who is there is forgotten", "pkg/scheduler/cycle/view.go",
		"(seen == nil || string(seen.UID) != ref.UID || api.Terminal(seen))", "(seen == nil || !api.Terminal(seen))", "TestReserve",
	},
	{
		"who has ended is not forgotten", "pkg/scheduler/cycle/view.go",
		" || api.Terminal(seen))", " || api.Terminal(seen) && seen.Name == \"\")", "TestReserve",
	},
	{
		"reserved next to one that was not heard of", "pkg/scheduler/cycle/view.go",
		"if len(diff.come) > 0 {", "if len(diff.come) > 1 {", "TestReserve",
	},
	{
		"a pod goes where it is not", "pkg/scheduler/cycle/cycle.go",
		"return &decide.Refusal{Reason: decide.Elsewhere, Node: c.on, Assumed: true}", "return nil", "TestOfAPodThatIsOnANode",
	},
	{
		"a reservation is reviewed", "pkg/scheduler/binder/binder.go",
		"		return goesOn\n", "		return goesOn && false\n", "pkg/scheduler/cycle:TestAReservationLastsUntilBind",
	},
	{
		"a reservation is not taken back", "pkg/scheduler/cycle/cycle.go",
		"if !c.reserved.IsZero() {", "if c.reserved.IsZero() {", "TestReserve",
	},
	{
		"woken by any pod that leaves", "pkg/scheduler/cycle/hints.go",
		"d.Binder.Cache.Refused(gone.Spec.NodeName, q) == nil", "true", "TestGoneHelps",
	},
	{
		"a hint before the cache has heard", "pkg/scheduler/cycle/hints.go",
		"	d.forget(api.Ref(gone))\n", "", "TestGoneHelps",
	},
	{
		"an admission wakes no pod", "pkg/scheduler/cycle/hints.go",
		" || api.Admitted(is) != api.Admitted(was) {", " {", "TestChangeHelps",
	},
	{
		"a node that offers more is empty", "pkg/scheduler/cycle/hints.go",
		"placement.NewNode(node.Name, inv, holdings)", "placement.NewNode(node.Name, inv, holdings[:0])", "TestNodeHelps",
	},
	{
		"victims by the cache alone", "pkg/scheduler/cycle/preempt.go",
		"	if !differs {\n", "	if !differs || len(victims) > 0 {\n", "TestCheaper",
	},
	{
		"dearer pods are evicted", "pkg/scheduler/cycle/preempt.go",
		"budgets) >= 0 {", "budgets) > 1 {", "TestCheaper",
	},
	{
		"a lead is that of before", "pkg/scheduler/binder/turn.go",
		"last != nil && last.begun.Equal(since)", "last != nil", "pkg/scheduler/extender:TestALeaderThatKnowsWhenItBegan",
	},
	{
		"a lead begins caught up", "pkg/scheduler/binder/turn.go",
		"read: make(map[string]bool)}, nil", "read: make(map[string]bool), told: true}, nil", "pkg/scheduler/extender:TestALeaderThatKnowsWhenItBegan",
	},
	{
		"waking off, some nodes asked", "test/sim/extender.go",
		"e.asker.WakeWaiting(context.Background())", "if e.asker.NodesToFind(few) == few {\n\t\t\t\te.asker.WakeWaiting(context.Background())\n\t\t\t}", simulation,
	},
	{
		"waking off, all nodes asked", "test/sim/extender.go",
		"e.asker.WakeWaiting(context.Background())", "if e.asker.NodesToFind(few) < few {\n\t\t\t\te.asker.WakeWaiting(context.Background())\n\t\t\t}", simulation,
	},
	{
		"equals evicted", "pkg/core/preemption/preempt.go",
		"h.Request.Priority >= req.Priority", "h.Request.Priority > req.Priority", simulation,
	},
	{
		"API call under the lock", "pkg/node/reconcile/reconcile.go",
		"	if err := r.pods.Correct(writing, ref, is, s.Inventory); err != nil {", "	r.mu.Lock()\n	err := r.pods.Correct(writing, ref, is, s.Inventory)\n	r.mu.Unlock()\n	if err != nil {", simulation,
	},
	{
		"cores by the node's sum", "pkg/core/placement/fit.go",
		"case !n.Left(d).Covers(units, cores):", "case !n.Left(d).Covers(units, 0), n.FreeFor(r).Cores < cores:", simulation,
	},
	{
		"cordoned GPUs take pods", "pkg/kube/api/codec.go",
		"return Cordon(inv, n.CordonedGPUs(node)), nil", "return inv, nil", simulation,
	},
	{
		"cordoned GPUs take unplaced pods", "pkg/node/nodestate/state.go",
		"api.Cordon(s.Inventory, n.cfg.Cordoned())", "api.Cordon(s.Inventory, n.cfg.Cordoned()[:0])", simulation,
	},
	{
		"foreign use offered", "pkg/core/placement/node.go",
		"return max(0, d.Allocatable-d.Foreign-d.Requested)", "return max(0, d.Allocatable-d.Requested)", simulation,
	},
	{
		"panic on a bad annotation", "pkg/kube/api/pod.go",
		"	if err != nil || count < 1 || count > maxCount {", "	if err != nil {\n		panic(err)\n	}\n	if count < 1 || count > 64 {", simulation,
	},
	{
		"policies refuse nothing", "test/sim/adversary.go",
		"if s.w.cfg.Adversary != underPolicies {", "if true {", simulation,
	},
	{
		"what was given is not counted", "pkg/core/placement/node.go",
		"if shares, ok := given[h.Pod.UID]; ok {", "if shares, ok := given[h.Pod.UID]; ok && false {", simulation,
	},
	{
		"what was given is not written", "pkg/node/reconcile/reconcile.go",
		"		if !c.Whole() {\n			continue\n", "		if !c.Asked() {\n			continue\n", "TestAPodCountsAsTheKubeletHasGivenIt",
	},
	{
		"a forged assignment is believed", "pkg/kube/api/pod.go",
		"return Admitted(pod) || Considered(pod)", "return true", simulation,
	},
	{
		"a time-out is a refusal", "pkg/scheduler/controller/client.go",
		" && code != http.StatusRequestTimeout", " && code != http.StatusTeapot", "TestClientTellsRefusalFromUnknownOutcome",
	},
	{
		"what was never sent is unknown", "pkg/scheduler/controller/client.go",
		"asked.Load() && !got.Load()", "asked.Load() && !got.Load() && false", "TestABindingThatWasNeverSentIsRefused",
	},
	{
		"what was sent is refused", "pkg/scheduler/controller/client.go",
		"asked.Load() && !got.Load()", "asked.Load()", "TestClientTellsRefusalFromUnknownOutcome",
	},
	{
		"a binding is sent again", "pkg/scheduler/controller/client.go",
		".MaxRetries(0)", "", "TestABindingIsSentOnce",
	},
	{
		"a namesake's binding is believed", "pkg/scheduler/binder/binder.go",
		"gone := err == nil && (pod == nil || string(pod.UID) != ref.UID)", "gone := err == nil && pod == nil", "pkg/scheduler/extender:TestAPodMadeAgainUnderItsNameIsAnother",
	},
	{
		"a namesake keeps an assumption", "pkg/scheduler/binder/binder.go",
		`case pod == nil || string(pod.UID) != a.Pod.UID || pod.Spec.NodeName == "":`, `case pod == nil || pod.Spec.NodeName == "":`, "pkg/scheduler/extender:TestAPodMadeAgainUnderItsNameIsAnother",
	},
	{
		"a review forgets a later binding", "pkg/scheduler/binder/binder.go",
		"b.Cache.ExpirePod(a.Pod.UID, before)", "b.Cache.ForgetPod(a.Pod.UID)", "pkg/scheduler/extender:TestAReviewLeavesWhatIsBoundMeanwhile",
	},
	{
		"nominated pods score nothing", "pkg/scheduler/extender/filter.go",
		"if len(state.Nominated) > 0 {", "if len(state.Nominated) > 999 {", "TestNominatedPodsCountWhenNodesAreScored",
	},
	{
		"answers kept for another", "pkg/core/cache/answers.go",
		"if len(state.Nominated) > 0 {", "if false {", "TestAnswersBesideANominatedPodAreNotKept",
	},
	{
		"answers kept of what was", "pkg/core/cache/answers.go",
		"if last == nil || last.of != state {", "if last == nil {", "TestAnAnswerAboutWhatWasIsNoAnswer",
	},
	{
		"assumed and bound are the same", "pkg/core/cache/compare.go",
		"return p.Assumed != r.Assumed || p.Node", "return p.Node", "TestDifferencesAndHeal",
	},
	{
		"a pod's CPU never changes", "pkg/core/cache/cache.go",
		" && old.Request.CPU == h.Request.CPU {", " {", "TestCPUOfAPodThatIsResized",
	},
	{
		"a policy that there is not packs", "pkg/core/placement/request.go",
		"return p == Binpack || p == Exclusive", "return p != Spread", "TestChoose",
	},
	{
		"the largest without unplaced pods", "pkg/core/closest/gap.go",
		"if left := n.Left(d).Units; left > most", "if left := d.Free(); left > most", "pkg/core/placement:TestLargestFree",
	},
	{
		"cores promised twice", "pkg/core/placement/fit.go",
		"		left.Cores = max(0, left.Cores-h.Request.Cores())\n", "", "TestLeftBesidePodsOnNoKnownGPU",
	},
	{
		"more foreign use than memory", "pkg/kube/api/inventory.go",
		"case d.Foreign < 0 || d.Foreign > d.Allocatable:", "case d.Foreign < 0:", "TestValidateInventory",
	},
	{
		"a plugin of before that has stopped is a GPU that ails", "pkg/kube/api/codec.go",
		"case j.Stopped, j.Unhealthy == stoppedBefore:", "case j.Stopped:", "TestStatusOneMinorVersionApart",
	},
	{
		"a reservation is read by half", "pkg/kube/api/reservation.go",
		"; err != nil || !in.valid() {", "; err != nil {", "TestAReservationThatCannotBeReadIsNone",
	},
	{
		"equal containers are one", "pkg/core/allocation/admit.go",
		"if out.Container = c; !b.before(t, c, g.Resource) {", "if out.Container = c; true {", "TestAdmitSaysForWhichContainer",
	},
	{
		"a kubelet that restarts has all", "pkg/node/deviceplugin/server.go",
		"	p.state.ForgetGiven() // a kubelet", "	// a kubelet", "TestAKubeletThatStartsAgainMayHaveLostWhatItWasGiven",
	},
	{
		"the kubelet is asked first", "pkg/node/nodestate/state.go",
		"		held, known, err := n.kubelet.List(asking)\n		if err == nil {", "		held, known, err := n.kubelet.List(asking)\n		pods, _, changed = n.pods.Pods()\n		if err == nil {", "TestPodsAreReadBeforeTheKubelet",
	},
	{
		"a fraction of a fraction", "pkg/node/containers/response.go",
		"		share = shareOfLimit\n", "", "TestFrameworksTakeTheirGrant",
	},
	{
		"a list in the environment limits pods of several GPUs", "pkg/core/gpu/gpu.go",
		"	if gpus > 1 && inv.Enforcement == EnforcementMPS {", "	if false {", "TestLevelFor",
	},
	{
		"what was reserved stays", "pkg/node/enforcement/kernel.go",
		"	return sum, k.driver.Set(ctx, id, dir, sum, hard)", "	return sum, k.driver.Set(ctx, id, dir, has, hard)", "TestNothingIsReservedForContainersThatEnded",
	},
	{
		"a limit is not read back", "pkg/node/enforcement/kernel.go",
		"	case !ok || !within(soft, bytes) || !within(hard, bytes):", "	case !ok && soft+hard > 0:", "TestAContainerHasItsLimitOrTheNodeIsNotKernel",
	},
	{
		"no limits without dmem", "pkg/node/enforcement/cgroups.go",
		"	return err\n}\n\n// dir returns", "	if _, err := os.Stat(filepath.Join(c.Root, \"dmem.capacity\")); err != nil {\n		return err\n	}\n	return err\n}\n\n// dir returns", "TestNodeThatMayHaveAny",
	},
	{
		"kernel is said and not seen", "pkg/node/enforcement/node.go",
		"f.Test = n.kernel.proven(ctx, f.Driver, devices)", "f.Test = ctx.Err()", "TestANodeIsKernelOnceALimitWasReadBack",
	},
	{
		"a lost limit stays lost", "pkg/node/enforcement/kernel.go",
		"errors.Join(k.keep(ctx, devices), k", "errors.Join(k", "TestLimitsThatTheDriverLosesAreSetAgain",
	},
	{
		"what ran before is tried once", "pkg/node/nri/plugin.go",
		"	return len(p.waiting) > 0\n", "	return false\n", "TestContainersThatRanBefore",
	},
	{
		"levels end with the plugin", "pkg/node/nodestate/levels.go",
		"|| l.file == \"\" {\n		return nil", "|| l.file != \"\" {\n		return nil", "pkg/node/reconcile:TestTheLevelThatAPodHasOutlivesThePlugin",
	},
	{
		"a client of a retired protocol starts", "pkg/node/mps/client.go",
		"if protocol <= Protocol {", "if protocol >= 0 {", "TestCheckProtocol",
	},
	{
		"GPUs with clients of a retired protocol are offered", "pkg/node/coexist/node.go",
		"case len(n.retired[d.UUID]) > 0:", "case false:", "TestGPUsWithRetiredClientsAreNotOffered",
	},
	{
		"a call that is given up gives a claim back", "pkg/node/claims/driver.go",
		"	if err := ctx.Err(); err != nil {\n		return err\n	}\n", "", "TestACallThatIsGivenUpDoesNothing",
	},
	{
		"a call that is given up prepares a claim", "pkg/node/claims/driver.go",
		"	if err := ctx.Err(); err != nil {\n		return nil, err\n	}\n", "", simulation,
	},
	{
		"prepared claims are not added up", "pkg/node/claims/claim.go",
		"case want.amount > offered-has.amount:", "case want.amount > offered:", simulation,
	},
	{
		"the CDI file of a claim that is gone stays", "pkg/node/claims/driver.go",
		"if _, ok := d.claims[uid]; !ok {", "if _, ok := d.claims[uid]; !ok && uid == \"\" {", "TestFilesAreMadeAgainFromTheCheckpoint",
	},
	{
		"CDI files are not made again", "pkg/node/claims/driver.go",
		"for _, c := range d.claims {\n		if _, err := d.write(", "for _, c := range map[types.UID]Claim{} {\n		if _, err := d.write(", "TestFilesAreMadeAgainFromTheCheckpoint",
	},
	{
		"GPUs that claims hand out take pods", "pkg/core/gpu/status.go",
		"return s.Open() && !s.ByClaims", "return s.Open()", simulation,
	},
	{
		"what pods have by claims is not counted", "pkg/core/placement/node.go",
		"if g.Name != \"\" {", "if g.Name != \"\" && g.UID == \"\" {", simulation,
	},
}
