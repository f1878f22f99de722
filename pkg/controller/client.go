package controller

import (
	"context"
	"errors"
	"net/http"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// BindDeadline is how long the API server may work on a binding, by its own
// clock: it is sent with the request. Once it has passed, with some margin, a
// binding of unknown outcome can be settled by reading the pod.
const BindDeadline = 5 * time.Second

// Client reads pods and sends bindings for the extender, and reads for the
// Comparer. The Controller lends it the objects of the watches.
type Client struct {
	*Controller
	core corev1.CoreV1Interface
}

// NewClient returns the extender's hand at the API server.
func NewClient(c *Controller, client kubernetes.Interface) *Client {
	return &Client{Controller: c, core: client.CoreV1()}
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

// ReadNode reads a node from the API server. It returns nil when there is none.
func (c *Client) ReadNode(ctx context.Context, name string) (*v1.Node, error) {
	node, err := c.core.Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return node, err
}

// Bind sends a binding with a deadline.
func (c *Client) Bind(ctx context.Context, binding *v1.Binding) error {
	ctx, cancel := context.WithTimeout(ctx, BindDeadline)
	defer cancel()
	return c.core.RESTClient().Post().
		Namespace(binding.Namespace).Resource("pods").Name(binding.Name).SubResource("binding").
		Timeout(BindDeadline).
		Body(binding).Do(ctx).Error()
}

// Refused reports whether an error of Bind says that the binding was not
// written: the API server's own refusal, or no connection to it at all.
func (c *Client) Refused(err error) bool {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return true
	}
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && code != http.StatusRequestTimeout
}
