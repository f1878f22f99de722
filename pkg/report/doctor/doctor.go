package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Settle is the minimum age of a workload for the checks.
const Settle = time.Minute

// Severity ranks a finding.
type Severity string

// The severities, worst first.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Note    Severity = "note" // no fault
)

// rank orders severities, the worst first.
func (s Severity) rank() int { return slices.Index([]Severity{Error, Warning, Note}, s) }

// A Finding is one fault.
type Finding struct {
	Check    string   `json:"check"` // the check's name; empty for a note about objects that no check covers
	Severity Severity `json:"severity"`
	Object   string   `json:"object"` // "deployment NAMESPACE/NAME", "node NAME"
	Wrong    string   `json:"wrong"`
	Fix      string   `json:"fix"`
}

// findings are the findings of one check.
type findings []Finding

// add adds a finding about an object. An empty fix stands for the remedy of the check.
func (f *findings) add(severity Severity, object, fix, format string, args ...any) {
	*f = append(*f, Finding{Severity: severity, Object: object, Wrong: fmt.Sprintf(format, args...), Fix: fix})
}

// State is a cluster as far as its user may read it.
type State struct {
	Names         api.Names
	Now           time.Time
	ClientVersion string // of this command
	ServerVersion string // of Kubernetes, "v1.36.3"

	Nodes []v1.Node
	// Pods are the pods that Concerns selects. If Namespace is set, only its pods could be listed.
	Pods      []v1.Pod
	Namespace string
	// ControlPlane has the pods of kube-apiserver and kube-scheduler, if these run as pods.
	ControlPlane []v1.Pod
	Deployments  []appsv1.Deployment
	DaemonSets   []appsv1.DaemonSet
	ConfigMaps   []v1.ConfigMap
	Secrets      []v1.Secret // with certificates
	Policies     []admissionv1.ValidatingAdmissionPolicy
	Bindings     []admissionv1.ValidatingAdmissionPolicyBinding
	Slices       []resourceapi.ResourceSlice

	// Unread has the error of each kind that could not be listed ("secrets").
	Unread map[string]string
}

// Young returns the workloads of gpumem that are younger than Settle, and the time until the youngest
// reaches it.
func (s *State) Young() (objects []string, left time.Duration) {
	look := func(kind string, object metav1.ObjectMeta) {
		if object.Labels[partOf] == "gpumem" && !old(s, object) {
			objects = append(objects, kind+" "+nameOf(object))
			left = max(left, Settle-s.Now.Sub(object.CreationTimestamp.Time))
		}
	}
	for _, ds := range s.DaemonSets {
		look("daemonset", ds.ObjectMeta)
	}
	for _, d := range s.Deployments {
		look("deployment", d.ObjectMeta)
	}
	for i := range s.Pods {
		look("pod", s.Pods[i].ObjectMeta)
	}
	return objects, left
}

// Concerns reports whether a check reads a pod: it belongs to gpumem, or requests GPU memory.
func Concerns(names api.Names, pod *v1.Pod) bool {
	return pod.Labels[partOf] == "gpumem" || names.Asks(pod)
}

// Controls reports whether a pod belongs to the part of the control plane that allocates claims.
func Controls(pod *v1.Pod) bool {
	of := pod.Labels["component"]
	return pod.Namespace == metav1.NamespaceSystem && pod.Labels["tier"] == "control-plane" && (of == "kube-apiserver" || of == "kube-scheduler")
}

// some returns the first few of many names.
func some(names []string) string {
	const shown = 3
	if len(names) <= shown+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}

// Examine runs all checks. It returns errors first, and last the notes about everything that it could
// not check.
func Examine(s *State) []Finding {
	var found []Finding
	in := find(s)
	for _, check := range Checks() {
		for _, f := range check.find(s, in) {
			f.Check, f.Fix = check.Name, cmp.Or(f.Fix, check.Remedy)
			found = append(found, f)
		}
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), cmp.Compare(a.Object, b.Object))
	})
	return append(found, unchecked(s)...)
}

// unchecked notes workloads that are too young, and kinds that could not be listed.
func unchecked(s *State) (found []Finding) {
	if young, _ := s.Young(); len(young) > 0 {
		minute := duration.HumanDuration(Settle)
		found = append(found, Finding{"", Note, "cluster", fmt.Sprintf("not checked, because they are younger than %s: %s", minute, some(young)),
			fmt.Sprintf("repeat the command in %s, or add --wait", minute)})
	}
	if kinds := slices.Sorted(maps.Keys(s.Unread)); len(kinds) > 0 {
		found = append(found, Finding{"", Note, "cluster", "not checked, because they could not be listed: " + strings.Join(kinds, ", ") + " (" + s.Unread[kinds[0]] + ")",
			"the ClusterRole and the Role gpumem-viewer have the rights for most of them; a cluster administrator has all"})
	}
	return found
}

// node returns a node by its name; nil if there is none.
func (s *State) node(name string) *v1.Node {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return &s.Nodes[i]
		}
	}
	return nil
}

// read reports whether all these kinds could be listed.
func (s *State) read(kinds ...string) bool {
	return !slices.ContainsFunc(kinds, func(kind string) bool { return s.Unread[kind] != "" })
}

// Judged reports whether at least one check had its objects.
func (s *State) Judged() bool {
	return slices.ContainsFunc([]string{"nodes", "pods", "daemonsets", "deployments"}, func(kind string) bool { return s.read(kind) })
}

// old reports whether an object has reached Settle.
func old(s *State, object metav1.ObjectMeta) bool {
	return s.Now.Sub(object.CreationTimestamp.Time) >= Settle
}

func nameOf(object metav1.ObjectMeta) string { return object.Namespace + "/" + object.Name }

// oneLine returns the text of an error on one line. Joined errors have several.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
