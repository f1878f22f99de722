package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
)

// endsSoon is how long before its end a certificate is spoken of.
const endsSoon = 30 * 24 * time.Hour

// holdAnnotations ends the name of the policy that keeps the annotations of pods.
const holdAnnotations = "-hold-annotations"

// checkPolicies looks for the admission policies of the release, and whether
// they refuse; those that can be ignored when they fail are there to warn.
func checkPolicies(s *State, ds *appsv1.DaemonSet) (found []Finding) {
	if !s.read("validatingadmissionpolicies", "validatingadmissionpolicybindings") {
		return nil
	}
	plugin, annotations := false, false
	for _, policy := range s.Policies {
		if policy.Labels[instance] != ds.Labels[instance] || policy.Labels[partOf] != "gpumem" {
			continue
		}
		plugin = plugin || policy.Labels[component] == "device-plugin"
		annotations = annotations || strings.HasSuffix(policy.Name, holdAnnotations)
		action, otherwise := admissionv1.Deny, "refuses nothing"
		if fails := policy.Spec.FailurePolicy; fails != nil && *fails == admissionv1.Ignore {
			action, otherwise = admissionv1.Warn, "warns of nothing"
		}
		bound := slices.ContainsFunc(s.Bindings, func(b admissionv1.ValidatingAdmissionPolicyBinding) bool {
			return b.Spec.PolicyName == policy.Name && slices.Contains(b.Spec.ValidationActions, action)
		})
		if !bound {
			found = append(found, Finding{Warning, "validatingadmissionpolicy " + policy.Name, fmt.Sprintf("nothing binds it with the action %s, so it %s", action, otherwise), "helm upgrade the release"})
		}
	}
	object := "daemonset " + ds.Namespace + "/" + ds.Name
	if !plugin {
		found = append(found, Finding{Warning, object,
			"no admission policy holds the plugin to its node: a token taken from one node may change the annotations of all nodes and pods", "set admission.holdDevicePlugin to true"})
	}
	if !annotations {
		found = append(found, Finding{Warning, object,
			"no admission policy keeps what is written of pods: the owner of a pod may change its GPUs and rules in the annotations", "set admission.holdAnnotations to true"})
	}
	return found
}

// checkCertificates looks at those of an extender that serves by TLS.
func checkCertificates(s *State, in installation) (found []Finding) {
	if in.bundled() || !s.read("secrets") {
		return nil
	}
	names := []string{in.scheduler.Name + "-client"}
	for _, volume := range in.scheduler.Spec.Template.Spec.Volumes {
		if volume.Secret != nil {
			names = append(names, volume.Secret.SecretName)
		}
	}
	for _, name := range names {
		i := slices.IndexFunc(s.Secrets, func(secret v1.Secret) bool { return secret.Namespace == in.scheduler.Namespace && secret.Name == name })
		object := "secret " + in.scheduler.Namespace + "/" + name
		if i < 0 {
			if name != names[0] { // kube-scheduler's may come from elsewhere
				found = append(found, Finding{Error, object, "is not there, and the extender serves with it", "helm upgrade the release, or create it: tls.crt, tls.key and ca.crt"})
			}
			continue
		}
		end, err := endOf(s.Secrets[i].Data[v1.TLSCertKey])
		switch {
		case err != nil:
			found = append(found, Finding{Error, object, "its tls.crt cannot be read: " + err.Error(), "delete it and helm upgrade the release"})
		case end.Before(s.Now):
			found = append(found, Finding{Error, object, "its certificate has ended on " + end.Format(time.DateOnly), "helm upgrade the release, and copy kube-scheduler's files again (docs/existing-scheduler.md)"})
		case end.Sub(s.Now) < endsSoon:
			found = append(found, Finding{Warning, object, "its certificate ends on " + end.Format(time.DateOnly), "helm upgrade the release, and copy kube-scheduler's files again (docs/existing-scheduler.md)"})
		}
	}
	return found
}

func endOf(text []byte) (time.Time, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return time.Time{}, errors.New("it holds no PEM block")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, err
	}
	return cert.NotAfter, nil
}

// checkVersions looks whether the parts fit one another: they may be one minor
// version apart, as during an upgrade.
func checkVersions(s *State, in installation) (found []Finding) {
	versions := make(map[string]string) // by part
	if in.plugin != nil {
		versions["device plugin"] = in.plugin.Labels[version]
	}
	if in.scheduler != nil {
		versions["extender"] = in.scheduler.Labels[version]
	}
	if minor(s.ClientVersion) >= 0 {
		versions["this command"] = s.ClientVersion
	}
	parts := slices.Sorted(maps.Keys(versions))
	for i, a := range parts {
		for _, b := range parts[i+1:] {
			apart := minor(versions[a]) - minor(versions[b])
			if minor(versions[a]) < 0 || minor(versions[b]) < 0 || apart == 0 {
				continue
			}
			severity := Warning
			if apart > 1 || apart < -1 {
				severity = Error
			}
			found = append(found, Finding{severity, "cluster", fmt.Sprintf("%s is of version %s, and %s of %s", a, versions[a], b, versions[b]),
				"upgrade the older one: they may be one minor version apart, and not for long"})
		}
	}
	return found
}

// minor returns the minor number of "v1.36.3", or -1.
func minor(version string) int {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return -1
	}
	n, err := strconv.Atoi(parts[1])
	if err != nil {
		return -1
	}
	return n
}
