package api

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// annotation describes an annotation of the domain: its writer, its value and its effect.
type annotation struct {
	name   string // without the domain
	writer writer
	value  string // the value, in Markdown
	effect string // the effect, in Markdown

	// For annotations that users write on pods:
	want   string                                                  // the expected value, for the errors of read
	cel    string                                                  // the condition of read in CEL, for admission policies; v is the annotation's value
	read   func(r *placement.Request, pod *v1.Pod, s string) error // parses a value into its field of r
	render func(r placement.Request) string                        // the text that explain adds to the request; nil if explain describes the field elsewhere
}

// writer is the author of an annotation and the kind of object that has it.
type writer uint8

const (
	byUsers   writer = iota // on pods, or in their template
	byBinding               // on pods: by the scheduler at binding, and by the node's device plugin
	byWaking                // on waiting pods: by the scheduler
	byPlugin                // on nodes: by the device plugin
	byAdmins                // on nodes: by administrators with kubectl inspect gpumem
)

func (w writer) onPods() bool { return w == byUsers || w == byBinding || w == byWaking }

func (w writer) String() string {
	return [...]string{
		byUsers:   "users, on pods",
		byBinding: "the scheduler and the device plugin, on pods",
		byWaking:  "the scheduler, on pods that wait",
		byPlugin:  "the device plugin, on its node",
		byAdmins:  "`kubectl inspect gpumem cordon`, on nodes",
	}[w]
}

// Names of annotations, without the domain, that other code uses too.
const (
	countName      = "gpu-count"
	policyName     = "policy"
	modelName      = "gpu-model"
	uuidName       = "gpu-uuid"
	preferenceName = "gpu-model-preference"
	groupName      = "gpu-group"
	exclusiveName  = "exclusive-group"
	levelName      = "enforcement"
	assignmentName = "assignment"
	indexName      = "gpu-index"
	usedName       = "gpu-memory-used"
	roomMadeName   = "room-made"
	inventoryName  = "inventory"
	cordonedName   = "cordoned-gpus"
	cordonsName    = "cordon-reasons"
)

// celGlobs validates a list of globs in an admission policy. Each glob has the syntax of path.Match:
// characters, escaped characters, and classes with at least one range.
const (
	celChar  = `([^\\\]-]|\\.)`
	celRange = celChar + `(-` + celChar + `)?`
	celFirst = `(\^` + celRange + `|([^\\\]^-]|\\.)(-` + celChar + `)?)`
	celGlob  = `(?s)^([^\[\\]|\\.|\[` + celFirst + `(` + celRange + `)*\])+$`
	// CEL needs string() to type the argument of bytes().
	celGlobs = `bytes(string(v)).size() <= 1024 && string(v).split(',').size() <= 32 && string(v).split(',').all(g, g.trim() != '!' && g.trim().matches(r'` + celGlob + `'))`

	wantGlobs = "a list of globs, like A100*,!A100-SXM4-80GB, 32 of them and 1024 bytes at most"
)

// annotations lists all annotations of the domain. The parser and explain process the users'
// annotations in this order.
var annotations = [...]annotation{
	{
		name: countName, writer: byUsers, value: "`\"2\"`",
		effect: "the memory is split equally over 2 GPUs of one node, linked ones first; it must divide evenly",
		want:   "a number of GPUs from 1 to 64",
		cel:    `v.matches('^[+]?0*([1-9]|[1-5][0-9]|6[0-4])$')`,
		read: func(r *placement.Request, _ *v1.Pod, s string) (err error) {
			r.Count, err = readCount(s, r.Containers.All())
			return err
		},
	},
	{
		name: policyName, writer: byUsers, value: policyList("`%s`"),
		effect: policyEffect(),
		want:   placement.JoinPolicies(placement.Policies()),
		cel:    "v in [" + policyList("'%s'") + "]",
		read: func(r *placement.Request, _ *v1.Pod, s string) (err error) {
			r.Policy, err = readPolicy(s)
			return err
		},
	},
	{
		name: modelName, writer: byUsers, value: "`\"A100*,!A100-SXM4-80GB\"`",
		effect: "only models that match; `!` excludes",
		want:   wantGlobs, cel: celGlobs,
		read: func(r *placement.Request, _ *v1.Pod, s string) (err error) {
			r.Models, err = readGlobs(s)
			return err
		},
		render: func(r placement.Request) string { return unless(r.Models == "", " matching %s", r.Models) },
	},
	{
		name: uuidName, writer: byUsers, value: "`\"GPU-4cc8*\"`",
		effect: "the same for UUIDs",
		want:   wantGlobs, cel: celGlobs,
		read: func(r *placement.Request, _ *v1.Pod, s string) (err error) {
			r.UUIDs, err = readGlobs(s)
			return err
		},
		render: func(r placement.Request) string {
			if r.Models == "" {
				return unless(r.UUIDs == "", " matching %s", r.UUIDs)
			}
			return unless(r.UUIDs == "", ",%s", r.UUIDs)
		},
	},
	{
		name: preferenceName, writer: byUsers, value: "`fastest`, `cheapest`",
		effect: "the fastest or the slowest model with enough free; another is taken otherwise",
		want:   "fastest or cheapest",
		cel:    `v in ['fastest', 'cheapest']`,
		read: func(r *placement.Request, _ *v1.Pod, s string) (err error) {
			r.Preference, err = readPreference(s)
			return err
		},
		render: func(r placement.Request) string {
			return map[placement.Preference]string{
				placement.Fastest:  ", of the fastest model that it fits on",
				placement.Cheapest: ", of the slowest model that it fits on",
			}[r.Preference]
		},
	},
	{
		name: groupName, writer: byUsers, value: "a name",
		effect: "on one GPU with pods of its namespace that name the same group, where possible",
		want:   "a name", cel: `v != ''`,
		read: func(r *placement.Request, pod *v1.Pod, s string) (err error) {
			r.Group, err = readGroup(pod.Namespace, s)
			return err
		},
		render: func(r placement.Request) string {
			return unless(r.Group.Name == "", ", on one GPU with pods of gpu-group %q where it fits", r.Group.Name)
		},
	},
	{
		name: exclusiveName, writer: byUsers, value: "a name",
		effect: "never on one GPU with a pod of its namespace that names the same group",
		want:   "a name", cel: `v != ''`,
		read: func(r *placement.Request, pod *v1.Pod, s string) (err error) {
			r.ExclusiveGroup, err = readGroup(pod.Namespace, s)
			return err
		},
		render: func(r placement.Request) string {
			return unless(r.ExclusiveGroup.Name == "", ", apart from pods of exclusive-group %q", r.ExclusiveGroup.Name)
		},
	},
	{
		name: levelName, writer: byUsers, value: "`advisory`, `mps`, `kernel`",
		effect: "only where that [level](limits.md) or a stronger one holds",
		want:   "advisory, mps or kernel",
		cel:    `v in ['advisory', 'mps', 'kernel']`,
		read: func(r *placement.Request, _ *v1.Pod, s string) (err error) {
			r.Enforcement, err = ParseEnforcement(s)
			return err
		},
		render: func(r placement.Request) string {
			return unless(r.Enforcement == "", ", at the level %s or a stronger one", r.Enforcement)
		},
	},
	{
		name: assignmentName, writer: byBinding, value: "JSON",
		effect: "the pod's GPUs, the amount of each, and the level",
	},
	{
		name: indexName, writer: byBinding, value: "`\"0,3\"`",
		effect: "the indexes of these GPUs, for people",
	},
	{
		name: usedName, writer: byBinding, value: "JSON",
		effect: "the GPU memory that the pod uses, and its maximum, in steps of 64 MiB. The device plugin writes it at most once in five minutes",
	},
	{
		name: roomMadeName, writer: byWaking, value: "a time, and the node to which the scheduler has nominated the pod",
		effect: "makes the scheduler retry the pod at once",
	},
	{
		name: inventoryName, writer: byPlugin, value: "JSON",
		effect: "the GPUs that the node offers, and their state",
	},
	{
		name: cordonedName, writer: byAdmins, value: "UUIDs, separated by commas",
		effect: "these GPUs take no new pods",
	},
	{
		name: cordonsName, writer: byAdmins, value: "JSON",
		effect: "the author (`by`) and the reason (`reason`) of each cordon, by UUID, for people",
	},
}

// policyList returns the formatted names of all policies, joined by commas.
func policyList(format string) string {
	var names []string
	for _, p := range placement.Policies() {
		names = append(names, fmt.Sprintf(format, p))
	}
	return strings.Join(names, ", ")
}

func policyEffect() string {
	var prefers []string
	for _, p := range placement.Policies() {
		gpu, _ := p.Doc()
		prefers = append(prefers, gpu)
	}
	return strings.Join(prefers, ", or ") + ". Default: the chart's `policy`. `exclusive` waits for such a GPU; the others are [preferences](choosing-gpus.md#policies)"
}

func unless(nothing bool, format string, value any) string {
	if nothing {
		return ""
	}
	return fmt.Sprintf(format, value)
}

// Wishes describes a pod's constraints and preferences for GPUs, apart from amounts, number and policy.
func Wishes(r placement.Request) (s string) {
	for i := range annotations {
		if wish := annotations[i].render; wish != nil {
			s += wish(r)
		}
	}
	return s
}

// readAnnotations parses the annotations by users. It skips malformed values and returns the first
// error.
func (n Names) readAnnotations(r *placement.Request, pod *v1.Pod) (firstErr error) {
	for i := range annotations {
		a := &annotations[i]
		value, ok := pod.Annotations[n.domain+"/"+a.name]
		if !ok || a.read == nil {
			continue
		}
		if err := a.read(r, pod, value); err != nil && firstErr == nil {
			firstErr = fmt.Errorf("annotation %s: %w", n.key(a.name), err)
		}
	}
	return firstErr
}

// ParseFallback parses the policy for pods that name none. It rejects Exclusive: a pod must name this
// policy itself, so that other schedulers and people see it in the pod.
func ParseFallback(s string) (placement.Policy, error) {
	want := placement.JoinPolicies(placement.ClusterPolicies())
	switch p := placement.Policy(s); {
	case p.OfCluster():
		return p, nil
	case p.IsKnown():
		return "", fmt.Errorf("only a pod itself can ask for %s; want %s", s, want)
	}
	return "", fmt.Errorf("%q: want %s", s, want)
}
