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

// MinAge is the minimum age of a workload for the checks.
const MinAge = time.Minute

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

// A Finding is one fault or note.
type Finding struct {
	Check    string   `json:"check"` // the check's name; empty for a note about objects that could not be checked
	Severity Severity `json:"severity"`
	Object   string   `json:"object"` // "deployment NAMESPACE/NAME", "node NAME"
	Wrong    string   `json:"wrong"`
	Fix      string   `json:"fix"`
}

// findings are the findings of one check.
type findings []Finding

// add adds a finding about an object. If fix is empty, the finding gets the check's remedy.
func (f *findings) add(severity Severity, object, fix, format string, args ...any) {
	*f = append(*f, Finding{Severity: severity, Object: object, Wrong: fmt.Sprintf(format, args...), Fix: fix})
}

// State has the objects of a cluster that the user may read.
type State struct {
	Names         api.Names
	Now           time.Time
	ClientVersion string // of this command
	ServerVersion string // of Kubernetes, "v1.36.3"

	Nodes []v1.Node
	// Pods are the pods that IsRelevantPod selects. If Namespace is set, only pods of this namespace could be
	// listed.
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

	// Unread has the errors of the kinds that could not be listed, by kind ("secrets").
	Unread map[string]string
}

// YoungWorkloads returns the workloads of gpumem that are younger than MinAge, and the time until the youngest
// reaches MinAge.
func (s *State) YoungWorkloads() (objects []string, remaining time.Duration) {
	addIfYoung := func(kind string, object metav1.ObjectMeta) {
		if object.Labels[partOfLabel] == "gpumem" && !old(s, object) {
			objects = append(objects, kind+" "+namespacedName(object))
			remaining = max(remaining, MinAge-s.Now.Sub(object.CreationTimestamp.Time))
		}
	}
	for _, ds := range s.DaemonSets {
		addIfYoung("daemonset", ds.ObjectMeta)
	}
	for _, d := range s.Deployments {
		addIfYoung("deployment", d.ObjectMeta)
	}
	for i := range s.Pods {
		addIfYoung("pod", s.Pods[i].ObjectMeta)
	}
	return objects, remaining
}

// IsRelevantPod reports whether a check reads a pod: it belongs to gpumem, or requests GPU memory.
func IsRelevantPod(names api.Names, pod *v1.Pod) bool {
	return pod.Labels[partOfLabel] == "gpumem" || names.Asks(pod)
}

// IsControlPlanePod reports whether a pod runs kube-apiserver or kube-scheduler. Claims need feature gates of both.
func IsControlPlanePod(pod *v1.Pod) bool {
	role := pod.Labels["component"]
	return pod.Namespace == metav1.NamespaceSystem && pod.Labels["tier"] == "control-plane" && (role == "kube-apiserver" || role == "kube-scheduler")
}

// abbreviateNames returns the first few of many names.
func abbreviateNames(names []string) string {
	const maxNames = 3
	if len(names) <= maxNames+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
}

// Examine runs all checks. It returns errors first, then warnings and notes, and last the notes about
// objects that it could not check.
func Examine(s *State) []Finding {
	var result []Finding
	inst := findInstallation(s)
	for _, check := range Checks() {
		for _, f := range check.run(s, inst) {
			f.Check, f.Fix = check.Name, cmp.Or(f.Fix, check.Remedy)
			result = append(result, f)
		}
	}
	slices.SortStableFunc(result, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), cmp.Compare(a.Object, b.Object))
	})
	return append(result, listUnchecked(s)...)
}

// listUnchecked returns notes about workloads that are too young, and about kinds that could not be listed.
func listUnchecked(s *State) (result []Finding) {
	if young, _ := s.YoungWorkloads(); len(young) > 0 {
		minute := duration.HumanDuration(MinAge)
		result = append(result, Finding{"", Note, "cluster", fmt.Sprintf("not checked, because they are younger than %s: %s", minute, abbreviateNames(young)),
			fmt.Sprintf("repeat the command in %s, or add --wait", minute)})
	}
	if kinds := slices.Sorted(maps.Keys(s.Unread)); len(kinds) > 0 {
		cause := s.Unread[kinds[0]]
		if i := slices.Index(kinds, "configmaps"); i >= 0 {
			kinds[i] += " with the names of gpumem's schedulers"
		}
		result = append(result, Finding{"", Note, "cluster", "not checked, because they could not be listed: " + strings.Join(kinds, ", ") + " (" + cause + ")",
			"the ClusterRole and the Role gpumem-viewer have the rights for most of them; a cluster administrator has all"})
	}
	return result
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

// Judged reports whether the user may list at least one kind of object that the main checks need.
func (s *State) Judged() bool {
	return slices.ContainsFunc([]string{"nodes", "pods", "daemonsets", "deployments"}, func(kind string) bool { return s.read(kind) })
}

// old reports whether an object has reached MinAge.
func old(s *State, object metav1.ObjectMeta) bool {
	return s.Now.Sub(object.CreationTimestamp.Time) >= MinAge
}

func namespacedName(object metav1.ObjectMeta) string { return object.Namespace + "/" + object.Name }

// oneLine returns the text of an error on one line. Joined errors have several lines.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
