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
	"github.com/gpumem/gpumem/pkg/report/decisions"
)

// Settle is how old something must be before it is taken for lasting.
const Settle = time.Minute

// Severity says how bad a finding is.
type Severity string

// The severities, worst first.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Note    Severity = "note" // nothing is wrong as far as is known
)

// A Finding is one thing that is wrong.
type Finding struct {
	Severity Severity `json:"severity"`
	Object   string   `json:"object"` // what it is about: "deployment NAMESPACE/NAME", "node NAME"
	Wrong    string   `json:"wrong"`
	Fix      string   `json:"fix"`
}

// State is a cluster as it was read.
type State struct {
	Names         api.Names
	Now           time.Time
	ClientVersion string // of who asks
	ServerVersion string // of Kubernetes, "v1.36.3"

	Nodes []v1.Node
	Pods  []v1.Pod // that have not ended
	// ControlPlane has the pods of kube-apiserver and kube-scheduler, where they are pods.
	ControlPlane []v1.Pod
	Deployments  []appsv1.Deployment
	DaemonSets   []appsv1.DaemonSet
	ConfigMaps   []v1.ConfigMap
	Secrets      []v1.Secret // with certificates
	Policies     []admissionv1.ValidatingAdmissionPolicy
	Bindings     []admissionv1.ValidatingAdmissionPolicyBinding
	Slices       []resourceapi.ResourceSlice
	Decided      []decisions.Pod // what the extenders remember

	// Unread has what could not be read, by kind ("secrets"), and why.
	Unread map[string]string
}

// Young names the parts of gpumem, and the pods with GPU memory, that are younger than
// Settle: little is said of them yet. Left is how long it takes until none of them is.
func (s *State) Young() (objects []string, left time.Duration) {
	look := func(kind string, object metav1.ObjectMeta, ours bool) {
		if ours && !old(s, object) {
			objects = append(objects, kind+" "+object.Namespace+"/"+object.Name)
			left = max(left, Settle-s.Now.Sub(object.CreationTimestamp.Time))
		}
	}
	for _, ds := range s.DaemonSets {
		look("daemonset", ds.ObjectMeta, ds.Labels[partOf] == "gpumem")
	}
	for _, d := range s.Deployments {
		look("deployment", d.ObjectMeta, d.Labels[partOf] == "gpumem")
	}
	for i := range s.Pods {
		look("pod", s.Pods[i].ObjectMeta, Concerns(s.Names, &s.Pods[i]))
	}
	return objects, left
}

// Concerns reports whether a pod is to be looked at: it is of gpumem, or asks for GPU memory,
// or for what is perhaps meant to be it.
func Concerns(names api.Names, pod *v1.Pod) bool {
	return pod.Labels[partOf] == "gpumem" || names.Asks(pod) || len(names.UnknownResources(pod)) > 0
}

// Controls reports whether a pod is one of the control plane that decides about claims.
func Controls(pod *v1.Pod) bool {
	of := pod.Labels["component"]
	return pod.Namespace == metav1.NamespaceSystem && pod.Labels["tier"] == "control-plane" && (of == "kube-apiserver" || of == "kube-scheduler")
}

// unjudged says what is too young to be judged.
func unjudged(s *State) []Finding {
	young, _ := s.Young()
	if len(young) == 0 {
		return nil
	}
	return []Finding{{Note, "cluster", fmt.Sprintf("what is younger than %s may be settling yet, and was not judged: %s", duration.HumanDuration(Settle), some(young)),
		fmt.Sprintf("ask again in %s, or with --wait", duration.HumanDuration(Settle))}}
}

// some names the first of many things.
func some(names []string) string {
	const shown = 3
	if len(names) <= shown+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}

// Labels of the chart.
const (
	partOf    = "app.kubernetes.io/part-of"
	component = "app.kubernetes.io/component"
	instance  = "app.kubernetes.io/instance"
	version   = "app.kubernetes.io/version"
)

// An installation is one release of the chart.
type installation struct {
	plugin    *appsv1.DaemonSet
	mps       *appsv1.DaemonSet  // nil where it is off
	scheduler *appsv1.Deployment // the extender's, with or without a kube-scheduler in its pod
	config    *v1.ConfigMap      // kube-scheduler's; nil where it is not the chart's
}

// bundled reports whether the release has a kube-scheduler of its own.
func (i installation) bundled() bool {
	return i.scheduler != nil && i.scheduler.Labels[component] == "scheduler"
}

// Examine returns what is wrong, errors first, and last what is too young to be judged.
func Examine(s *State) []Finding {
	var found []Finding
	for _, kind := range slices.Sorted(maps.Keys(s.Unread)) {
		found = append(found, Finding{Warning, kind, "cannot be read: " + s.Unread[kind], "ask for the right to list them, or have somebody run this who has it: what they could show was not checked"})
	}
	in, findings := find(s)
	found = append(found, findings...)
	if in.plugin != nil {
		found = append(found, checkPlugin(s, in.plugin)...)
		found = append(found, checkNodes(s, in.plugin)...)
		found = append(found, checkPolicies(s, in.plugin)...)
	}
	if in.mps != nil {
		found = append(found, checkDaemonSet(s, in.mps, "MPS daemon", "until it works, the node has neither of the levels mps and kernel (docs/limits.md)")...)
	}
	if in.scheduler != nil {
		found = append(found, checkScheduler(s, in)...)
		found = append(found, checkCertificates(s, in)...)
		found = append(found, checkKubeScheduler(s, in)...)
		found = append(found, checkSampling(s, in)...)
	}
	found = append(found, checkClaims(s)...)
	found = append(found, checkVersions(s, in)...)
	found = append(found, checkPods(s, in)...)
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Object, b.Object))
	})
	return append(found, unjudged(s)...)
}

// node returns a node by its name; nil where it is not known.
func (s *State) node(name string) *v1.Node {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return &s.Nodes[i]
		}
	}
	return nil
}

// read reports whether all of these kinds could be read.
func (s *State) read(kinds ...string) bool {
	return !slices.ContainsFunc(kinds, func(kind string) bool { return s.Unread[kind] != "" })
}

// Judged reports whether anything could be judged: without nodes, pods and gpumem's own workloads,
// nothing can.
func (s *State) Judged() bool {
	return slices.ContainsFunc([]string{"nodes", "pods", "daemonsets", "deployments"}, func(kind string) bool { return s.read(kind) })
}

// install sets up what is missing, of a release that is there too.
const install = "helm upgrade --install gpumem charts/gpumem --namespace gpumem-system --create-namespace; where the release had values of its own, with these (-f); one that is installed elsewhere is named by --gpumem-namespace"

// find looks for the installation of the domain that was asked about.
func find(s *State) (in installation, found []Finding) {
	if !s.read("daemonsets", "deployments") {
		return in, nil
	}
	in.plugin, found = findPlugin(s)
	in.mps = findMPS(s, in.plugin)
	for i := range s.Deployments {
		d := &s.Deployments[i]
		if d.Labels[partOf] == "gpumem" && Flag(d.Spec.Template.Spec, "resource-domain", "") == s.Names.Domain() {
			in.scheduler = d
		}
	}
	if in.scheduler == nil {
		found = append(found, Finding{Error, "cluster", "no extender for " + s.Names.Domain() + " is installed: nothing places pods on GPUs",
			install})
		return in, found
	}
	for i := range s.ConfigMaps {
		if c := &s.ConfigMaps[i]; c.Namespace == in.scheduler.Namespace && c.Name == in.scheduler.Name {
			in.config = c
		}
	}
	return in, found
}

// findPlugin returns the device plugin of the domain, nil where there is none.
func findPlugin(s *State) (plugin *appsv1.DaemonSet, found []Finding) {
	var others []string
	for i := range s.DaemonSets {
		ds := &s.DaemonSets[i]
		if ds.Labels[partOf] != "gpumem" || ds.Labels[component] != "device-plugin" {
			continue
		}
		switch domain := Flag(ds.Spec.Template.Spec, "resource-domain", api.DefaultDomain); {
		case domain != s.Names.Domain():
			others = append(others, domain)
		case plugin != nil:
			found = append(found, Finding{Error, "daemonset " + ds.Namespace + "/" + ds.Name,
				fmt.Sprintf("a second device plugin for %s, next to %s/%s: both offer the same GPUs", domain, plugin.Namespace, plugin.Name), "uninstall one of the two releases"})
		default:
			plugin = ds
		}
	}
	if plugin == nil {
		fix := install
		if len(others) > 0 {
			fix = fmt.Sprintf("ask about a domain that is installed: --resource-domain=%s; or install this one", strings.Join(others, " or "))
		}
		found = append(found, Finding{Error, "cluster", "no device plugin for " + s.Names.Domain() + " is installed", fix})
	}
	return plugin, found
}

// findMPS returns the MPS daemon of a plugin's release, nil where there is none.
func findMPS(s *State, plugin *appsv1.DaemonSet) *appsv1.DaemonSet {
	for i := range s.DaemonSets {
		ds := &s.DaemonSets[i]
		if plugin != nil && ds.Namespace == plugin.Namespace && ds.Labels[instance] == plugin.Labels[instance] && ds.Labels[component] == "mps" {
			return ds
		}
	}
	return nil
}

// Flag returns the value of a flag of gpumem's own container.
func Flag(spec v1.PodSpec, name, otherwise string) string {
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if !strings.HasPrefix(c.Name, "gpumem-") {
			continue
		}
		for _, arg := range c.Args {
			if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
				otherwise = value
			}
		}
	}
	return otherwise
}
