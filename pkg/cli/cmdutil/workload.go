package cmdutil

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// workloads maps kubectl's names for the types of controllers to their kinds.
func workloads() map[string]string {
	return map[string]string{
		"deploy": "Deployment", "deployment": "Deployment", "deployments": "Deployment",
		"sts": "StatefulSet", "statefulset": "StatefulSet", "statefulsets": "StatefulSet",
		"ds": "DaemonSet", "daemonset": "DaemonSet", "daemonsets": "DaemonSet",
		"rs": "ReplicaSet", "replicaset": "ReplicaSet", "replicasets": "ReplicaSet",
		"job": "Job", "jobs": "Job", "cj": "CronJob", "cronjob": "CronJob", "cronjobs": "CronJob",
	}
}

// kindOf returns the controller kind for a name of the form TYPE or TYPE.GROUP; empty for other names.
func kindOf(name string) string {
	name, _, _ = strings.Cut(name, ".")
	return workloads()[name]
}

// podOf returns the newest waiting pod of a controller or, if none of its pods waits for a node, its newest
// pod. It reads only pods, because users who may read pods may lack the right to read controllers.
func (f *Factory) podOf(ctx context.Context, r *cluster.Reader, kind, name string) (*v1.Pod, error) {
	namespace, _, err := f.podNamed("")
	if err != nil {
		return nil, err
	}
	list, err := r.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods := slices.DeleteFunc(list.Items, func(pod v1.Pod) bool { return !belongs(&pod, kindOf(kind), name) })
	if len(pods) == 0 {
		return nil, fmt.Errorf("%s/%s has no pods in namespace %s; if it could not create them, kubectl get events -n %s --field-selector reason=FailedCreate shows the reason", kind, name, namespace, namespace)
	}
	waits := func(pod *v1.Pod) int {
		if pod.Spec.NodeName == "" && !api.Terminal(pod) {
			return 1
		}
		return 0
	}
	newest := slices.MaxFunc(pods, func(a, b v1.Pod) int {
		return cmp.Or(cmp.Compare(waits(&a), waits(&b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(b.Name, a.Name))
	})
	return &newest, nil
}

// belongs reports whether a controller created a pod, directly or through a ReplicaSet or a Job.
func belongs(pod *v1.Pod, kind, name string) bool {
	owner := metav1.GetControllerOf(pod)
	switch {
	case owner == nil:
		return false
	case kind == "Deployment":
		return owner.Kind == "ReplicaSet" && cluster.DeploymentOf(pod) == name
	case kind == "CronJob":
		at, ok := strings.CutPrefix(owner.Name, name+"-")
		return ok && owner.Kind == "Job" && jobTime.MatchString(at)
	default:
		return owner.Kind == kind && owner.Name == name
	}
}

// jobTime matches the suffix that a CronJob adds to its own name for a Job: the scheduled time in minutes
// since the Unix epoch.
var jobTime = regexp.MustCompile(`^\d+$`)
