package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	"github.com/gpumem/gpumem/pkg/report/boundedhttp"
)

const (
	// extenderPort is the port on the loopback of a scheduler pod that serves the records of decisions.
	extenderPort = 8013
	// extenderTime is the time limit for the response of one scheduler pod.
	extenderTime = 10 * time.Second
)

// readExtender reads JSON from the loopback of a scheduler pod through a forwarded port.
func (r *Reader) readExtender(ctx context.Context, pod *v1.Pod, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, extenderTime)
	defer cancel()
	port, err := r.forward(ctx, pod)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("gpumem's scheduler returns %s: is it older than this command?", answer.Status)
	}
	text, err := boundedhttp.Read(answer.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// forward forwards a local port to extenderPort of a pod until the context is done. It returns the local port.
func (r *Reader) forward(ctx context.Context, pod *v1.Pod) (local uint16, err error) {
	transport, upgrader, err := spdy.RoundTripperFor(r.REST)
	if err != nil {
		return 0, err
	}
	forward := r.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	checked := &forbidding{RoundTripper: transport, pod: pod.Name}
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: checked}, http.MethodPost, forward)
	ready := make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", extenderPort)}, ctx.Done(), ready, io.Discard, io.Discard)
	if err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case err := <-ended:
		return 0, cmp.Or(checked.err, err) // the receive from ended orders this read of checked.err after its write
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-ready:
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return 0, err
	}
	return ports[0].Local, nil
}

// forbidding is a transport that records a Forbidden error if the API server refuses to forward ports. Callers could
// not recognize the forwarder's own error, which has only the text.
type forbidding struct {
	http.RoundTripper
	pod string
	err error
}

// RoundTrip implements http.RoundTripper.
func (f *forbidding) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := f.RoundTripper.RoundTrip(request)
	if err == nil && answer.StatusCode == http.StatusForbidden {
		f.err = apierrors.NewForbidden(v1.Resource("pods/portforward"), f.pod, errors.New(answer.Status))
	}
	return answer, err
}
