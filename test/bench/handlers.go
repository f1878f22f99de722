package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// benchHandlers measures each verb beside a handler that decodes the same
// request and encodes the same answer.
func benchHandlers(ctx context.Context, opts options, r *report) error {
	bind, filter := make(map[int]time.Duration), make(map[int]float64)
	for _, nodes := range []int{500, 5000, 50000} {
		f, err := newFleet(nodes, podsPerGPU)
		if err != nil {
			return err
		}
		asks := []ask{f.filter(), f.prioritize(), f.preempt(), f.bind()}
		for _, a := range asks {
			if err := ctx.Err(); err != nil {
				return err
			}
			m := a.measure(opts.rounds)
			results := m.results(a.verb + "-" + strconv.Itoa(nodes))
			ratio := &results[0]
			if a.verb == "filter" && nodes == 5000 {
				*ratio = ratio.atMost(1.5)
			}
			r.add(results...)
			switch a.verb {
			case "bind":
				bind[nodes] = m.took
			case "filter":
				filter[nodes] = ratio.Value
			}
		}
	}
	// What a name costs grows for any handler, with what no longer fits into the
	// processor's cache: beside the one that decides nothing, it must not.
	r.add(
		result{Name: "filter-growth", Unit: "× of its ratio from 5,000 to 50,000 nodes", Value: filter[50000] / filter[5000]}.atMost(1.5),
		result{Name: "bind-growth", Unit: "× from 500 to 50,000 nodes", Value: float64(bind[50000]) / float64(bind[500])}.atMost(1.5),
	)
	if err := benchNext(opts, r); err != nil {
		return err
	}
	return benchRunning(opts, r)
}

// benchNext measures filter as kube-scheduler asks it of a large fleet, pod after
// pod, with percentageOfNodesToScore 100: about all nodes, few of them changed since
// it asked last.
func benchNext(opts options, r *report) error {
	f, err := newFleet(5000, podsPerGPU)
	if err != nil {
		return err
	}
	f.Alone = true // as the chart has it
	r.add(f.next().measure(opts.rounds).results("filter-next-5000")...)
	return nil
}

// benchRunning compares filter where few pods run and where many do, that hold
// the same together.
func benchRunning(opts options, r *report) error {
	few, err := newFleet(5000, 1)
	if err != nil {
		return err
	}
	many, err := newFleet(5000, 8)
	if err != nil {
		return err
	}
	a, b := few.filter(), many.filter()
	a.null = b.routes
	ratios := a.measure(opts.rounds).ratios
	for i := range ratios {
		ratios[i] = 1 / ratios[i]
	}
	r.add(spread("filter-pods-running", "× with eight times as many", ratios).atMost(1.2))
	return nil
}

// ask is one request to a verb, that can be repeated.
type ask struct {
	verb   string
	routes http.Handler
	body   func() []byte // the next request's
	done   func()        // takes back what it did
	null   http.Handler  // decodes the same and answers the same
}

// measured is what came out of it.
type measured struct {
	ratios      []float64
	took        time.Duration // by one call, the median
	allocations float64       // of one call, less those of the other handler
}

func (m measured) results(name string) []result {
	return []result{
		spread(name, "×", m.ratios),
		{Name: name + "-time", Value: float64(m.took) / float64(time.Microsecond), Unit: "µs of CPU"},
		{Name: name + "-allocations", Value: m.allocations, Unit: "beyond those of the other"},
	}
}

func (a ask) measure(rounds int) measured {
	const atLeast = 20 * time.Millisecond // of each side in each round
	calls := 1
	for a.time(a.routes, calls) < atLeast {
		calls *= 2
	}
	var m measured
	var times []float64
	for range rounds {
		ours, null := a.time(a.routes, calls), a.time(a.null, calls)
		m.ratios = append(m.ratios, float64(ours)/float64(null))
		times = append(times, float64(ours)/float64(calls))
	}
	m.took = time.Duration(spread("", "", times).Value)
	m.allocations = a.allocations(a.routes) - a.allocations(a.null)
	return m
}

// time measures the CPU time of so many calls, without what prepares each and
// takes it back. The clock on the wall would tell of what else the machine does.
func (a ask) time(h http.Handler, calls int) time.Duration {
	return time.Duration(a.sum(h, calls, cpuTime))
}

// sum adds up by how much a measure grows in so many calls.
func (a ask) sum(h http.Handler, calls int, measure func() uint64) (sum uint64) {
	for range calls {
		request := httptest.NewRequest(http.MethodPost, "/"+a.verb, bytes.NewReader(a.body()))
		recorder := httptest.NewRecorder()
		before := measure()
		h.ServeHTTP(recorder, request)
		sum += measure() - before
		a.done()
	}
	return sum
}

// cpuTime is the nanoseconds that the process has used so far, its garbage collector included.
func cpuTime() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(err) // no Linux is without this clock
	}
	return uint64(t.Nano())
}

func (a ask) allocations(h http.Handler) float64 {
	const calls = 10
	return float64(a.sum(h, calls, func() uint64 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.Mallocs
	})) / calls
}

// null is a handler that decodes requests and encodes what it is given, with the
// library that the extender does it with.
func null[In, Out any](encoded []byte) http.Handler {
	out := new(Out)
	if err := json.Unmarshal(encoded, out); err != nil {
		panic(fmt.Sprintf("the answer %.200s: %v", encoded, err)) // it was encoded by the same program
	}
	return answer(func(context.Context, In) any { return out })
}

// question is an ask that changes nothing.
func question[Out, In any](f *fleet, verb string, in In) ask {
	body, err := json.Marshal(in)
	if err != nil {
		panic(err) // the protocol's own types
	}
	a := ask{verb: verb, routes: f.Routes("bench"), body: func() []byte { return body }, done: func() {}}
	recorder := httptest.NewRecorder()
	a.routes.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/"+verb, bytes.NewReader(body)))
	a.null = null[In, Out](recorder.Body.Bytes())
	return a
}

// asking is the pod that the questions are about.
func (f *fleet) asking() *v1.Pod { return pod(f.Names, 10_000_000, 10) }

func (f *fleet) filter() ask {
	return question[extenderv1.ExtenderFilterResult](f, "filter", extenderv1.ExtenderArgs{Pod: f.asking(), NodeNames: &f.names})
}

// next is filter about one pod after another: between two questions a pod came to
// one node, and one left another.
func (f *fleet) next() ask {
	a := f.filter()
	body, arrived := a.body, ""
	a.body = func() []byte {
		name := f.names[f.running%len(f.names)]
		node, _ := f.Cache.Node(name)
		if err := f.settle(name, node.Devices[0].UUID, 3); err != nil {
			panic(err) // a pod of the benchmark's own
		}
		arrived = string(pod(f.Names, f.running-1, 3).UID)
		return body()
	}
	a.done = func() { f.Cache.RemovePod(arrived) }
	return a
}

func (f *fleet) prioritize() ask {
	return question[extenderv1.HostPriorityList](f, "prioritize", extenderv1.ExtenderArgs{Pod: f.asking(), NodeNames: &f.names})
}

// preempt asks about a hundred nodes, as kube-scheduler does, with all their
// pods as victims.
func (f *fleet) preempt() ask {
	p := f.asking()
	p.Spec.Priority = new(int32(1000))
	args := extenderv1.ExtenderPreemptionArgs{Pod: p, NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{}}
	for _, name := range f.names[:100] {
		node, _ := f.Cache.Node(name)
		victims := &extenderv1.MetaVictims{}
		for _, h := range node.Holdings() {
			victims.Pods = append(victims.Pods, &extenderv1.MetaPod{UID: h.Pod.UID})
		}
		args.NodeNameToMetaVictims[name] = victims
	}
	return question[extenderv1.ExtenderPreemptionResult](f, "preempt", args)
}

// bind binds one pod after another to a node and takes it off again.
func (f *fleet) bind() ask {
	var last *v1.Pod
	a := ask{verb: "bind", routes: f.Routes("bench"), null: null[extenderv1.ExtenderBindingArgs, extenderv1.ExtenderBindingResult]([]byte("{}"))}
	a.body = func() []byte {
		last = pod(f.Names, 10_000_001+f.bound, 3)
		f.api.create(last)
		body, err := json.Marshal(extenderv1.ExtenderBindingArgs{
			PodName: last.Name, PodNamespace: last.Namespace, PodUID: last.UID, Node: f.names[f.bound%len(f.names)],
		})
		if err != nil {
			panic(err) // the protocol's own types
		}
		f.bound++
		return body
	}
	a.done = func() {
		f.Cache.RemovePod(string(last.UID))
		f.api.remove(last)
	}
	return a
}
