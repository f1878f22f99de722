package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/report/doctor"
	"github.com/gpumem/gpumem/pkg/report/history"
)

// DefaultPolicy is the default policy of the scheduler and of the chart.
const DefaultPolicy = placement.Binpack

// Policy returns the policy for pods that do not set a policy. It reads the flag --policy from the Deployment of the
// scheduler that has the reader's resource domain.
func (r *Reader) Policy(ctx context.Context) (placement.Policy, error) {
	list, err := r.Client.AppsV1().Deployments(r.System).List(ctx, metav1.ListOptions{LabelSelector: extenderSelector})
	if err != nil {
		return "", err
	}
	for _, d := range list.Items {
		spec := d.Spec.Template.Spec
		if doctor.Flag(spec, "resource-domain", r.Names.Domain()) != r.Names.Domain() {
			continue
		}
		policy, err := api.ParseFallback(doctor.Flag(spec, "policy", string(DefaultPolicy)))
		if err != nil {
			return "", fmt.Errorf("--policy of Deployment %s: %w", d.Name, err)
		}
		return policy, nil
	}
	return "", fmt.Errorf("no Deployment of gpumem's scheduler found in namespace %s (--gpumem-namespace selects another)", r.System)
}

// Extenders returns the scheduler's pods that have the reader's resource domain: of gpumem-scheduler or
// gpumem-extender.
func (r *Reader) Extenders(ctx context.Context) ([]v1.Pod, error) {
	pods, err := r.deployed(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pods, func(pod v1.Pod) bool {
		return doctor.Flag(pod.Spec, "resource-domain", r.Names.Domain()) != r.Names.Domain()
	}), nil
}

// Decided returns the latest record of the decisions about a pod; nil if no pod of the scheduler has a record. It
// reads from all these pods, because each has records only from the time when it led.
func (r *Reader) Decided(ctx context.Context, extenders []v1.Pod, namespace, name, uid string) (*history.Pod, error) {
	if r.REST == nil {
		return nil, nil
	}
	if len(extenders) == 0 {
		return nil, fmt.Errorf("no pod of gpumem's scheduler found in namespace %s (--gpumem-namespace selects another)", r.System)
	}
	var errs []error
	var latest *history.Pod
	path := history.Path + "?" + url.Values{"namespace": {namespace}, "pod": {name}}.Encode()
	for _, extender := range extenders {
		var list history.List
		if err := r.readExtender(ctx, &extender, path, &list); err != nil {
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

// silence returns the error for a pod of the scheduler that does not answer. If the pod is not ready, the error
// reports this cause instead of err.
func silence(extender *v1.Pod, err error) error {
	if !api.Ready(extender) {
		return fmt.Errorf("pod %s/%s is not ready yet", extender.Namespace, extender.Name)
	}
	return fmt.Errorf("pod %s/%s: %w", extender.Namespace, extender.Name, err)
}
