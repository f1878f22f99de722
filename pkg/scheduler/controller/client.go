package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// BindDeadline is the time for which the API server may process a binding, by the API server's clock. The
// request carries BindDeadline as its timeout. After BindDeadline and some margin, a read of the pod resolves
// a binding of unknown outcome.
const BindDeadline = 5 * time.Second

// PodsBy lists the pods of a namespace by a label selector. The pods are complete, unlike the trimmed pods of
// the watches.
func (c *Controller) PodsBy(ctx context.Context, namespace, selector string) ([]v1.Pod, error) {
	list, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Leader reads the holder of the Lease and its number of transitions. The number distinguishes two leads of
// one process: after a freeze, a process may lead again after another process has led. The result is empty if
// nobody holds the Lease or the process may not read it. The read takes a millisecond or two.
func (c *Controller) Leader(ctx context.Context) (string, error) {
	lease, err := c.client.CoordinationV1().Leases(c.Lease.Namespace).Get(ctx, c.Lease.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	if record.HolderIdentity == "" {
		return "", nil
	}
	return fmt.Sprintf("%s %d", record.HolderIdentity, record.LeaderTransitions), nil
}

// Revision reads the current resource version. The API server may wait up to 0.1 s for etcd.
func (c *Controller) Revision(ctx context.Context) (string, error) {
	list, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", err
	}
	return list.ResourceVersion, nil
}

// Wake makes kube-scheduler try a waiting pod again, by changing an annotation of the pod. Unless nominate is
// nil, it also nominates the pod to this node, or to none if the name is empty. It patches the status
// subresource, which can also change annotations and requires no permission to change the pod itself.
func (c *Controller) Wake(ctx context.Context, pod placement.PodRef, nominate *string) error {
	change := make(map[string]any)
	at := time.Now().UTC().Format(time.RFC3339Nano)
	if nominate != nil {
		change["status"] = map[string]string{"nominatedNodeName": *nominate}
		at = api.RoomMade(at, *nominate)
	}
	change["metadata"] = map[string]any{"uid": pod.UID, "annotations": map[string]string{c.names.RoomMadeAt(): at}}
	patch, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encode a patch: %w", err)
	}
	_, err = c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// ReadPod reads a pod from the API server. It returns nil if there is no such pod.
func (c *Controller) ReadPod(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	pod, err := c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return pod, err
}

// ReadPodsOn reads the pods of a node that have not ended. The request has no resource version, so the API
// server returns the current state of etcd.
func (c *Controller) ReadPodsOn(ctx context.Context, node string) ([]*v1.Pod, error) {
	selector := fields.AndSelectors(notTerminal(), fields.OneTermEqualSelector("spec.nodeName", node))
	list, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	pods := make([]*v1.Pod, 0, len(list.Items))
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods, nil
}

// Bind sends a binding once, with a deadline. The client applies no rate limit, because a limit could delay a
// binding past its deadline, and the API server limits bindings itself. client-go must not retry, because the
// last error would not show whether an earlier attempt was written. A binding that the API server rejects
// because it is busy was not written, and kube-scheduler tries the pod again.
func (c *Controller) Bind(ctx context.Context, binding *v1.Binding) error {
	ctx, cancel := context.WithTimeout(ctx, BindDeadline)
	defer cancel()
	var asked, got atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { got.Store(true) },
	})
	err := c.client.CoreV1().RESTClient().Post().
		Namespace(binding.Namespace).Resource("pods").Name(binding.Name).SubResource("binding").
		Throttle(nil).MaxRetries(0).Timeout(BindDeadline).
		Body(binding).Do(ctx).Error()
	if err != nil && asked.Load() && !got.Load() {
		return notSentError{err}
	}
	return err
}

// notSentError is an error that occurred before there was a connection to send the binding.
type notSentError struct{ error }

func (e notSentError) Unwrap() error { return e.error }

// Refused reports whether an error of Bind means that the binding was not written: the API server rejected
// it, or there was no connection.
func (c *Controller) Refused(err error) bool {
	if errors.As(err, new(notSentError)) {
		return true
	}
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && code != http.StatusRequestTimeout
}
