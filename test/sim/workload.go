package sim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// spec is what the simulation itself knows of a pod: its checks read this and
// never what the product makes of it.
type spec struct {
	name, uid  string
	containers []container
	gated      bool   // no scheduler looks at it until the gate is taken away
	gpus       int    // as many share the memory
	need       amount // in all, at the peak
	exclusive  bool   // alone on its GPUs
	closed     bool   // its policy cannot be read: its GPUs, if they are known, are closed to others
	namespace  string // groups are of it
	apart      string // exclusive-group
	together   string // group
	uuids      string // globs
	model      string // a glob
	preference string // of models
	policy     string
	broken     bool              // an annotation that cannot be read: it counts by what its containers name
	bound      string            // node name given by the user: no scheduler is asked
	keeper     bool              // made again under its name when it is gone
	priority   bool              // may evict others
	forged     map[string]string // annotations that the adversary has made it with

	*life
}

// life is what has happened to a pod.
type life struct {
	created  time.Duration
	wasBound bool
	boundAt  time.Duration // when it was last
	begun    bool          // the kubelet has given it something

	excused map[rule]time.Duration   // by rule that applies to it, since when
	arrived map[string]time.Duration // by GPU in its annotation, since when
	edited  bool                     // what it asks for was changed while it waited
	lawful  string                   // the assignment that a binding or the plugin has written last
	left    []string                 // the GPUs from which the plugin has moved it last
}

// anew is a pod that asks for the same, and of which nothing has been decided.
func (s *spec) anew() *spec {
	next := *s
	next.bound, next.life = "", nil
	return &next
}

// before reports whether what a pod is nominated to is not for another to take.
func (s *spec) before(o *spec) bool { return s.priority || !o.priority }

// alike reports whether two pods can stand in for one another.
func (s *spec) alike(o *spec) bool {
	same := func(a, b container) bool { return a.kind == b.kind && a.amount == b.amount }
	return slices.EqualFunc(s.containers, o.containers, same) && s.gpus == o.gpus && s.need.shares == o.need.shares && s.exclusive == o.exclusive &&
		s.apart == o.apart && s.together == o.together && (s.apart == "" && s.together == "" || s.namespace == o.namespace) && s.uuids == o.uuids && s.policy == o.policy &&
		s.model == o.model && s.preference == o.preference
}

type container struct {
	name   string
	kind   kind
	amount amount
}

type kind int

const (
	initial kind = iota // runs to its end
	sidecar
	app
)

// initial reports whether the pod's plain init containers alone ask for anything.
func (s *spec) initial() bool {
	return !slices.ContainsFunc(s.containers, func(c container) bool { return c.kind != initial && c.amount != amount{} })
}

// peak is what a pod needs at once.
func peak(containers []container) (most amount) {
	var beside amount
	for _, c := range containers {
		at := beside.plus(c.amount)
		if c.kind != initial {
			beside = at
		}
		most = amount{units: max(most.units, at.units), cores: max(most.cores, at.cores)}
	}
	return most
}

// sizes are few, so that pods which the kubelet can confuse are common.
var sizes = []int{2, 2, 2, 4, 4, 6}

// newSpec draws a pod.
func (w *World) newSpec() *spec {
	s := &spec{gpus: 1, namespace: namespaces[0]}
	cores := w.coresOf(s)
	c := func(k kind, units int) {
		s.containers = append(s.containers, container{name: fmt.Sprintf("c%d", len(s.containers)), kind: k, amount: amount{units: units, cores: cores()}})
	}
	size := func() int { return pick(w.rng, sizes) }
	shapes, rules := 12, 20
	if w.cfg.Narrow {
		size = func() int { return 4 }
		shapes, rules = 2, 9
	}
	if w.cfg.Equal && w.rng.IntN(4) > 0 {
		size = func() int { return 4 }
		shapes, rules = 1, 1000
	}
	switch shape := w.rng.IntN(shapes); shape {
	case 1, 2, 3:
		c([]kind{app, initial, sidecar}[shape-1], size())
		c(app, size())
	case 4:
		c(initial, size())
		c(app, size())
		c(app, 2)
	case 5:
		s.gpus = 2
		c(app, 2*size())
	case 6:
		c(app, 8)
	case 7:
		n := size()
		c(initial, n)
		c(app, n)
	default:
		c(app, size())
	}
	if w.cfg.Nonsense && w.chance(12) {
		s.broken, s.gpus = true, 1 // counted by what the containers name
	} else if w.cfg.Rules {
		switch w.rng.IntN(rules) {
		case 0:
			s.exclusive = true
		case 1:
			s.apart, s.namespace = "x", pick(w.rng, namespaces)
		case 2:
			s.together, s.namespace = "y", pick(w.rng, namespaces)
		case 3:
			s.policy = "spread"
		case 4:
			s.uuids = "!" + string(w.machines[0].hardware[0].UUID)
		case 5:
			s.model = pick(w.rng, []string{"A", "!A", "nvidia b"})
		case 6:
			s.preference = pick(w.rng, []string{"fastest", "cheapest"})
		}
	}
	s.need = peak(s.containers)
	s.need.shares = w.cfg.Shares && w.rng.IntN(2) == 0
	s.priority = w.rng.IntN(6) == 0
	s.keeper = w.cfg.Namesakes || w.rng.IntN(3) == 0
	return s
}

// coresOf draws whether a pod asks for cores, and how much each of its containers
// does. In a run without them nothing is drawn.
func (w *World) coresOf(s *spec) func() int {
	if !w.cfg.Cores || w.rng.IntN(3) == 0 {
		return func() int { return 0 }
	}
	size := pick(w.rng, []int{10, 30, 60})
	return func() int {
		if len(s.containers) > 0 && w.rng.IntN(3) == 0 {
			return 0
		}
		return size * s.gpus
	}
}

// create makes the API object of a pod. A name is used again where the pod
// before it is gone.
func (w *World) create(s *spec) {
	w.serial++
	s.uid = fmt.Sprintf("uid-%04d", w.serial)
	if s.name == "" {
		s.name = fmt.Sprintf("pod-%d", w.serial)
	}
	pod := w.object(s)
	if err := w.api.refuses(nil, pod); err != nil {
		w.logf("create %s: refused: %v", s.name, err)
		return
	}
	s.life = &life{created: w.now(), excused: make(map[rule]time.Duration), arrived: make(map[string]time.Duration)}
	w.pods[s.uid] = s
	w.order = append(w.order, s)
	w.api.setPod(s.name, pod)
	w.logf("create %s (%s): %s", s.name, s.uid, s)
}

func (s *spec) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "need %v of %d GPUs:", s.need, s.gpus)
	for _, c := range s.containers {
		fmt.Fprintf(&out, " %s=%v", [...]string{"init", "sidecar", "app"}[c.kind], c.amount)
	}
	if s.need.shares {
		out.WriteString(" in shares")
	}
	if s.exclusive {
		out.WriteString(" exclusive")
	}
	if s.apart != "" {
		out.WriteString(" apart in " + s.namespace)
	}
	if s.uuids != "" {
		out.WriteString(" uuids " + s.uuids)
	}
	if s.model != "" {
		out.WriteString(" model " + s.model)
	}
	if s.bound != "" {
		out.WriteString(" on " + s.bound)
	}
	return out.String()
}

var always = v1.ContainerRestartPolicyAlways

func (w *World) object(s *spec) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.namespace, Name: s.name, UID: types.UID(s.uid),
			CreationTimestamp: w.api.wallClock(), Annotations: make(map[string]string),
		},
		Spec:   v1.PodSpec{NodeName: s.bound, Priority: priority(s.priority)},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}
	for _, c := range s.containers {
		list := w.quantities(c.amount, s.need.shares)
		o := v1.Container{Name: c.name, Resources: v1.ResourceRequirements{Limits: list, Requests: list}}
		switch c.kind {
		case app:
			pod.Spec.Containers = append(pod.Spec.Containers, o)
			continue
		case sidecar:
			o.RestartPolicy = &always
		case initial:
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, o)
	}
	a := pod.Annotations
	if s.gpus > 1 {
		a[w.names.Count()] = strconv.Itoa(s.gpus)
	}
	policy := s.policy
	if s.exclusive {
		policy = "exclusive"
	}
	for key, value := range map[string]string{
		w.names.Policy(): policy, w.names.ExclusiveGroup(): s.apart, w.names.Group(): s.together,
		w.names.UUID(): s.uuids, w.names.Model(): s.model, w.names.ModelPreference(): s.preference,
	} {
		if value != "" {
			a[key] = value
		}
	}
	if s.broken && !s.hostile() {
		a[w.names.Count()] = "many"
	}
	maps.Copy(a, s.forged)
	if s.hostile() {
		w.readAgain(s, a)
	}
	if s.gated {
		pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "later"}}
	}
	return pod
}

func priority(high bool) *int32 {
	n := int32(0)
	if high {
		n = 1000
	}
	return &n
}

// terminal reports whether all containers of a pod have ended for good.
func terminal(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

func notTerminal(pod *v1.Pod) bool { return !terminal(pod) }
