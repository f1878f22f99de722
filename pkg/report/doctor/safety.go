package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
)

// endsSoon is the remaining validity below which checkCertificates reports a certificate.
const endsSoon = 30 * 24 * time.Hour

// holdAnnotations is the suffix of the name of the admission policy that protects the annotations of pods.
const holdAnnotations = "-hold-annotations"

func checkPolicies(s *State, inst installation) (result findings) {
	if inst.plugin == nil || !s.read("validatingadmissionpolicies", "validatingadmissionpolicybindings") {
		return nil
	}
	plugin, annotations := false, false
	for _, policy := range s.Policies {
		if policy.Labels[instance] != inst.plugin.Labels[instance] || policy.Labels[partOfLabel] != "gpumem" {
			continue
		}
		plugin = plugin || policy.Labels[component] == "device-plugin"
		annotations = annotations || strings.HasSuffix(policy.Name, holdAnnotations)
		// The chart's policies with failurePolicy Ignore have the action Warn, and the others Deny.
		action, otherwise := admissionv1.Deny, "refuses nothing"
		if fails := policy.Spec.FailurePolicy; fails != nil && *fails == admissionv1.Ignore {
			action, otherwise = admissionv1.Warn, "warns of nothing"
		}
		bound := slices.ContainsFunc(s.Bindings, func(b admissionv1.ValidatingAdmissionPolicyBinding) bool {
			return b.Spec.PolicyName == policy.Name && slices.Contains(b.Spec.ValidationActions, action)
		})
		if !bound {
			result.add(Warning, "validatingadmissionpolicy "+policy.Name, "helm upgrade the release", "no binding has the action %s, so it %s", action, otherwise)
		}
	}
	if !plugin {
		result.add(Warning, inst.object(), "set admission.holdDevicePlugin to true",
			"no admission policy restricts the plugin to its node: a token stolen from one node may change the annotations of all nodes and pods")
	}
	if !annotations {
		result.add(Warning, inst.object(), "set admission.holdAnnotations to true",
			"no admission policy protects gpumem's annotations: the owner of a pod may change its GPUs and rules")
	}
	return result
}

// checkCertificates checks the certificates of a gpumem-extender that serves the cluster's own kube-scheduler.
func checkCertificates(s *State, inst installation) (result findings) {
	if inst.scheduler == nil || inst.bundled() || !s.read("secrets") {
		return nil
	}
	client := inst.scheduler.Name + "-client"
	names := []string{client}
	for _, volume := range inst.scheduler.Spec.Template.Spec.Volumes {
		if volume.Secret != nil {
			names = append(names, volume.Secret.SecretName)
		}
	}
	for _, name := range names {
		object := "secret " + inst.scheduler.Namespace + "/" + name
		i := slices.IndexFunc(s.Secrets, func(secret v1.Secret) bool {
			return secret.Namespace == inst.scheduler.Namespace && secret.Name == name
		})
		if i < 0 {
			if name != client { // kube-scheduler's certificate may have another source
				result.add(Error, object, "helm upgrade the release, or create it: tls.crt, tls.key and ca.crt", "does not exist, but calls from your kube-scheduler need its certificate")
			}
			continue
		}
		end, err := certificateExpiry(s.Secrets[i].Data[v1.TLSCertKey])
		switch {
		case err != nil:
			result.add(Error, object, "delete it and helm upgrade the release", "its tls.crt cannot be read: %v", err)
		case end.Before(s.Now):
			result.add(Error, object, "", "its certificate expired on %s", end.Format(time.DateOnly))
		case end.Sub(s.Now) < endsSoon:
			result.add(Warning, object, "", "its certificate expires on %s", end.Format(time.DateOnly))
		}
	}
	return result
}

func certificateExpiry(text []byte) (time.Time, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return time.Time{}, errors.New("it contains no PEM block")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, err
	}
	return cert.NotAfter, nil
}

// checkVersions compares the versions of the parts. A difference of one minor version is only a warning,
// because it occurs during an upgrade.
func checkVersions(s *State, inst installation) (result findings) {
	versions := make(map[string]string) // by part
	if inst.plugin != nil {
		versions["device plugin"] = inst.plugin.Labels[version]
	}
	if inst.scheduler != nil {
		versions["scheduler"] = inst.scheduler.Labels[version]
	}
	if minor(s.ClientVersion) >= 0 {
		versions["this command"] = s.ClientVersion
	}
	parts := slices.Sorted(maps.Keys(versions))
	for i, a := range parts {
		for _, b := range parts[i+1:] {
			apart, majors := minor(versions[a])-minor(versions[b]), major(versions[a]) != major(versions[b])
			if minor(versions[a]) < 0 || minor(versions[b]) < 0 || apart == 0 && !majors {
				continue
			}
			severity := Warning
			if apart > 1 || apart < -1 || majors {
				severity = Error
			}
			result.add(severity, "cluster", "", "%s has version %s, and %s has %s", a, versions[a], b, versions[b])
		}
	}
	return result
}

// major returns the major number of "v1.36.3".
func major(version string) string {
	number, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	return number
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
