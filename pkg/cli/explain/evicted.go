package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/report/printers"
)

// evicted names the pods that preemption evicted for a pod. It reads the Events that kube-scheduler
// records on the evicted pods: "Preempted by pod UID on node NODE". The field related of these Events
// would identify the preempting pod, but is empty in Kubernetes 1.36. The API server deletes Events after
// an hour. evicted returns "" if it finds no such Event.
func (o *Options) evicted(ctx context.Context, pod *v1.Pod) string {
	events, hidden := o.preemptions(ctx, pod.Namespace)
	var names []string
	var last time.Time
	for _, e := range events {
		if !strings.HasPrefix(e.Message, "Preempted by pod "+string(pod.UID)+" ") {
			continue
		}
		names = append(names, e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name)
		if created := e.CreationTimestamp.Time; created.After(last) {
			last = created
		}
	}
	const unseen = "pods of other namespaces, if any, are not shown: you may not read Events there"
	switch {
	case len(names) == 0 && hidden && pod.Status.NominatedNodeName != "":
		return unseen
	case len(names) == 0:
		return ""
	}
	slices.Sort(names)
	names = slices.Compact(names) // a StatefulSet reuses the names of its pods
	if more := len(names) - shownNodes; more > 0 {
		names = append(names[:shownNodes], fmt.Sprintf("%d more", more))
	}
	said := fmt.Sprintf("%s, by preemption %s ago", strings.Join(names, ", "), printers.Age(last))
	if hidden {
		said += "; " + unseen
	}
	return said
}

// preemptions returns the Events with reason Preempted of all namespaces. If the user has no right to list them,
// it returns the Events of one namespace, and hidden is true.
func (o *Options) preemptions(ctx context.Context, namespace string) (events []v1.Event, hidden bool) {
	of := func(namespace string) (*v1.EventList, error) {
		return o.cluster.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=Preempted"})
	}
	list, err := of(metav1.NamespaceAll)
	if apierrors.IsForbidden(err) {
		hidden = true
		list, err = of(namespace)
	}
	if err != nil {
		return nil, true // the rest of the answer needs no Events
	}
	return list.Items, hidden
}
