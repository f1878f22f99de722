package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/kubectl/pkg/util/podutils"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/decisions"
	"github.com/gpumem/gpumem/pkg/doctor"
	"github.com/gpumem/gpumem/pkg/inspect"
	"github.com/gpumem/gpumem/pkg/placement"
	"github.com/gpumem/gpumem/pkg/printers"
)

const (
	// extenderPort is where the extender tells what it remembers, on its pod's
	// loopback alone.
	extenderPort = 8013
	// extenderTime is how long one extender may take to tell.
	extenderTime = 10 * time.Second
)

// extenderPolicy is the policy of an extender that is given none, and of the chart.
const extenderPolicy = placement.Binpack

// learnPolicy adds the cluster's policy to the facts, and reports whether it is known. Where it
// cannot be read, a warning says so, once, and the default is taken.
func (o *options) learnPolicy(ctx context.Context, facts *inspect.Facts) bool {
	policy, err := o.policy(ctx)
	facts.Policy = cmp.Or(policy, extenderPolicy)
	if err != nil && !o.warned {
		o.warned = true
		fmt.Fprintf(o.ErrOut, "warning: the cluster's policy cannot be read, and is taken to be %s: %s\n", extenderPolicy, printers.Clean(oneLine(err)))
	}
	return err == nil
}

// policy returns the policy by which the extender of the domain chooses GPUs for pods that name
// none, as its Deployment says.
func (o *options) policy(ctx context.Context) (placement.Policy, error) {
	list, err := o.client.AppsV1().Deployments(o.system).List(ctx, metav1.ListOptions{LabelSelector: extenderSelector})
	if err != nil {
		return "", err
	}
	for _, d := range list.Items {
		spec := d.Spec.Template.Spec
		if doctor.Flag(spec, "resource-domain", o.domain) != o.domain {
			continue
		}
		policy, err := api.ParseFallback(doctor.Flag(spec, "policy", string(extenderPolicy)))
		if err != nil {
			return "", fmt.Errorf("--policy of Deployment %s: %w", d.Name, err)
		}
		return policy, nil
	}
	return "", fmt.Errorf("no Deployment of gpumem's extender is found in namespace %s (--gpumem-namespace names another)", o.system)
}

// extenders returns the pods with an extender of the domain.
func (o *options) extenders(ctx context.Context) ([]v1.Pod, error) {
	pods, err := o.deployed(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pods, func(pod v1.Pod) bool {
		return doctor.Flag(pod.Spec, "resource-domain", o.domain) != o.domain
	}), nil
}

// decided returns what the extenders remember of a pod; nil when none does. Only
// the one beside the leading scheduler is asked about pods, and which that is may
// have changed, so all are.
func (o *options) decided(ctx context.Context, extenders []v1.Pod, namespace, name, uid string) (*decisions.Pod, error) {
	if o.rest == nil {
		return nil, nil
	}
	if len(extenders) == 0 {
		return nil, fmt.Errorf("no pod of gpumem's extender is found in namespace %s by %s (--gpumem-namespace names another)", o.system, extenderSelector)
	}
	var errs []error
	var latest *decisions.Pod
	path := decisions.Path + "?" + url.Values{"namespace": {namespace}, "pod": {name}}.Encode()
	for _, extender := range extenders {
		var list decisions.List
		if err := o.readExtender(ctx, &extender, path, &list); err != nil {
			errs = append(errs, silence(&extender, err))
			continue
		}
		for _, pod := range list.Pods {
			if pod.UID == uid && (latest == nil || pod.Decisions[0].Time.After(latest.Decisions[0].Time)) {
				latest = &pod
			}
		}
	}
	if latest != nil {
		return latest, nil
	}
	return nil, errors.Join(errs...)
}

// allDecided returns what the extenders remember of all pods. One that is not ready is
// not asked: others say what ails it.
func (o *options) allDecided(ctx context.Context) (pods []decisions.Pod, err error) {
	if o.rest == nil {
		return nil, nil
	}
	extenders, err := o.extenders(ctx)
	if err != nil {
		return nil, err
	}
	for _, extender := range extenders {
		if !podutils.IsPodReady(&extender) {
			continue
		}
		var list decisions.List
		if err := o.readExtender(ctx, &extender, decisions.Path, &list); err != nil {
			return nil, fmt.Errorf("pod %s/%s: %w", extender.Namespace, extender.Name, err)
		}
		pods = append(pods, list.Pods...)
	}
	return pods, nil
}

// silence says why an extender does not tell: while its pod starts, that it does.
func silence(extender *v1.Pod, err error) error {
	if !podutils.IsPodReady(extender) {
		return fmt.Errorf("pod %s/%s is not ready yet", extender.Namespace, extender.Name)
	}
	return fmt.Errorf("pod %s/%s: %w", extender.Namespace, extender.Name, err)
}

// readExtender reads JSON from the loopback of an extender's pod, by a forwarded
// port.
func (o *options) readExtender(ctx context.Context, pod *v1.Pod, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, extenderTime)
	defer cancel()
	transport, upgrader, err := spdy.RoundTripperFor(o.rest)
	if err != nil {
		return err
	}
	forward := o.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, forward)
	ready := make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", extenderPort)}, ctx.Done(), ready, io.Discard, io.Discard)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-ready:
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", ports[0].Local, path), nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s: is it older than this command?", answer.Status)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err = cmp.Or(err, tooLong(len(text))); err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
