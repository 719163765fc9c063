variable "cluster_name" {
  description = "Name of the cluster, on EKS or elsewhere."
  type        = string

  validation {
    condition     = can(regex("^[0-9A-Za-z][0-9A-Za-z_-]*$", var.cluster_name))
    error_message = "A cluster's name has letters, digits, hyphens and underscores."
  }
}

variable "name" {
  description = "Name of queue, rules and role, at most 43 characters. The default is spot-handler-<cluster_name>, which fits if the cluster's name has at most 30."
  type        = string
  default     = null

  validation {
    # A rule's name has at most 64 characters: these, a hyphen, and up to 20 for the kind.
    condition     = var.name == null || can(regex("^[0-9A-Za-z_-]{1,43}$", var.name))
    error_message = "A name has at most 43 letters, digits, hyphens and underscores."
  }
}

# ---- Which messages

variable "rebalance_recommendations" {
  description = "Whether rebalance recommendations are sent to the queue. Use false if the daemon runs with --rebalance=ignore."
  type        = bool
  default     = true
}

variable "scheduled_events" {
  description = "Whether maintenance, reboots and retirements that AWS Health announces for instances are sent to the queue."
  type        = bool
  default     = true
}

variable "state_changes" {
  description = "Whether the queue gets messages about instances that stop or shut down, or have stopped or terminated, for whatever reason."
  type        = bool
  default     = true
}

variable "terminate_hooks" {
  description = "Whether lifecycle hooks of Auto Scaling groups for instances that they terminate are sent to the queue. Use false if groups send them to the queue themselves."
  type        = bool
  default     = true
}

variable "launch_hooks" {
  description = "Whether lifecycle hooks of Auto Scaling groups for instances that they launch are sent to the queue, to be completed when the Node is Ready. Use true only if nobody else completes them."
  type        = bool
  default     = false
}

# ---- Queue

variable "message_retention_seconds" {
  description = "How long a message is kept, and how long EventBridge tries to deliver it. A notice of two minutes is worth nothing after five."
  type        = number
  default     = 300

  validation {
    # At least the time that an unreadable message takes to the dead-letter queue, at most as
    # long as EventBridge can try.
    condition     = var.message_retention_seconds >= 180 && var.message_retention_seconds <= 86400
    error_message = "Messages are kept for 180 to 86400 seconds."
  }
}

variable "kms_key_arn" {
  description = "ARN of a customer managed KMS key for both queues. Its key policy must let events.amazonaws.com use it: see deploy/aws.md. By default SQS manages the key."
  type        = string
  default     = null
}

variable "deny_other_senders" {
  description = "Whether the queue refuses messages from everybody but EventBridge, the topic of hook_topic_arn and sender_arns, whatever their own policies allow."
  type        = bool
  default     = true
}

variable "sender_arns" {
  description = "ARNs of roles and users that also can send, if their own policies let them: the role by which groups send lifecycle hooks straight to the queue, or that of somebody who provokes interruptions. They can have wildcards."
  type        = list(string)
  default     = []
}

variable "hook_topic_arn" {
  description = "ARN of an SNS topic that sends lifecycle hooks to the queue, if one does. By default none can."
  type        = string
  default     = null
}

variable "alarm_topic_arn" {
  description = "ARN of an SNS topic for alarms about dead letters, and about a queue that nobody reads. By default there are no alarms."
  type        = string
  default     = null
}

# ---- Who reads the queue

variable "credentials" {
  description = "How the pods get the role: pod-identity or irsa. With none you get only the policy, to attach yourself."
  type        = string
  default     = "pod-identity"

  validation {
    condition     = contains(["pod-identity", "irsa", "none"], var.credentials)
    error_message = "Credentials come by pod-identity, irsa or none."
  }
}

variable "oidc_provider" {
  description = "Only with credentials = \"irsa\": the cluster's OIDC issuer without https://, such as oidc.eks.eu-west-1.amazonaws.com/id/0123456789ABCDEF0123456789ABCDEF. IAM must know it as a provider."
  type        = string
  default     = ""

  validation {
    condition     = !can(regex("://|:", var.oidc_provider))
    error_message = "Give the issuer without https:// and not as an ARN."
  }
}

variable "namespace" {
  description = "Namespace of the ServiceAccount."
  type        = string
  default     = "spot-handler"
}

variable "service_account" {
  description = "The only ServiceAccount that can take the role."
  type        = string
  default     = "spot-handler-queue"
}

variable "permissions_boundary_arn" {
  description = "ARN of a permissions boundary for the role, if your account demands one."
  type        = string
  default     = null
}

# ---- Nodes of Auto Scaling groups

variable "auto_scaling_groups" {
  description = "Whether the role can have nodes of Auto Scaling groups replaced (detach an instance, so the group launches another, and terminate it once it is drained), and complete their lifecycle hooks. Karpenter needs none of this."
  type        = bool
  default     = false
}

variable "tag_key" {
  description = "Key of the tag that groups and instances must have for that. The default is kubernetes.io/cluster/<cluster_name>, which EKS demands on nodes, and which eksctl and managed node groups set."
  type        = string
  default     = null
}

variable "tag_value" {
  description = "Value of that tag."
  type        = string
  default     = "owned"
}

variable "tags" {
  description = "Tags for everything that can have tags."
  type        = map(string)
  default     = {}
}
