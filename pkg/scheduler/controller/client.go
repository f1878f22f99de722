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
	"k8s.io/client-go/kubernetes"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// BindDeadline is how long the API server may work on a binding, by its own
// clock: it is sent with the request. Once it has passed, with some margin, a
// binding of unknown outcome can be settled by reading the pod.
const BindDeadline = 5 * time.Second

// Client reads pods and sends bindings for the extender or the plugin. The Controller lends it the objects of the watches.
type Client struct {
	*Controller
	core   corev1.CoreV1Interface
	leases coordinationv1.CoordinationV1Interface
	lease  types.NamespacedName
}

// NewClient returns the extender's hand at the API server, or the plugin's. The Lease is that by
// which those lead who ask the extender; the plugin knows by itself when it leads, and has none.
func NewClient(c *Controller, client kubernetes.Interface, lease types.NamespacedName) *Client {
	return &Client{Controller: c, core: client.CoreV1(), leases: client.CoordinationV1(), lease: lease}
}

// PodsBy lists the pods of a namespace that a label selector matches, whole: the watches keep little of
// them.
func (c *Client) PodsBy(ctx context.Context, namespace, selector string) ([]v1.Pod, error) {
	list, err := c.core.Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Leader reads who has the Lease, and how often it has changed hands: one that was frozen can have it
// once more after another. It returns an empty name where there is no Lease, or where it may not be
// read. A read of one object asks etcd, and takes a millisecond or two.
func (c *Client) Leader(ctx context.Context) (string, error) {
	lease, err := c.leases.Leases(c.lease.Namespace).Get(ctx, c.lease.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		return "", nil
	case err != nil:
		return "", err
	case lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "":
		return "", nil
	}
	turns := int32(0)
	if lease.Spec.LeaseTransitions != nil {
		turns = *lease.Spec.LeaseTransitions
	}
	return fmt.Sprintf("%s %d", *lease.Spec.HolderIdentity, turns), nil
}

// Revision reads the resource version that the API server has reached. It waits for
// etcd to say so, up to 0.1 s.
func (c *Client) Revision(ctx context.Context) (string, error) {
	list, err := c.core.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", err
	}
	return list.ResourceVersion, nil
}

// Wake has kube-scheduler try a waiting pod again: it does so when an annotation of the
// pod changes. They can be changed through the pod's status, which takes no right to
// change the pod itself.
func (c *Client) Wake(ctx context.Context, pod placement.PodRef) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         pod.UID,
		"annotations": map[string]string{c.names.RoomMadeAt(): time.Now().UTC().Format(time.RFC3339Nano)},
	}})
	if err != nil {
		return fmt.Errorf("encode a patch: %w", err)
	}
	_, err = c.core.Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// ReadPod reads a pod from the API server. It returns nil when there is none.
func (c *Client) ReadPod(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	pod, err := c.core.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return pod, err
}

// ReadPodsOn reads the pods of a node that have not ended. Without a resource
// version the API server answers with what etcd has by then.
func (c *Client) ReadPodsOn(ctx context.Context, node string) ([]*v1.Pod, error) {
	selector := fields.AndSelectors(notTerminal(), fields.OneTermEqualSelector("spec.nodeName", node))
	list, err := c.core.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	pods := make([]*v1.Pod, 0, len(list.Items))
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods, nil
}

// Bind sends a binding once, with a deadline. The API server says how many it takes: no
// limit of the client's own keeps one back until it is too late. And client-go repeats
// none: the last error would say nothing of whether an earlier try was written. What the
// API server refuses because it is busy was not, and kube-scheduler tries again.
func (c *Client) Bind(ctx context.Context, binding *v1.Binding) error {
	ctx, cancel := context.WithTimeout(ctx, BindDeadline)
	defer cancel()
	var asked, got atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { got.Store(true) },
	})
	err := c.core.RESTClient().Post().
		Namespace(binding.Namespace).Resource("pods").Name(binding.Name).SubResource("binding").
		Throttle(nil).MaxRetries(0).Timeout(BindDeadline).
		Body(binding).Do(ctx).Error()
	if err != nil && asked.Load() && !got.Load() {
		return notSentError{err}
	}
	return err
}

// notSentError is why there was no connection on which to send a binding.
type notSentError struct{ error }

func (e notSentError) Unwrap() error { return e.error }

// Refused reports whether an error of Bind says that the binding was not
// written: the API server's own refusal, or no connection to it at all.
func (c *Client) Refused(err error) bool {
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
