variable "cluster_name" {
  description = "Name of the EKS cluster, or of any other."
  type        = string

  validation {
    condition     = can(regex("^[0-9A-Za-z][0-9A-Za-z_-]*$", var.cluster_name))
    error_message = "A cluster's name has letters, digits, hyphens and underscores."
  }
}

variable "name" {
  description = "What queue, rules and role are called: at most 43 characters. Without it spot-handler-<cluster_name>, which fits for clusters of up to 30."
  type        = string
  default     = null

  validation {
    # A rule's name has at most 64: these, a hyphen, and up to 20 for the kind.
    condition     = var.name == null || can(regex("^[0-9A-Za-z_-]{1,43}$", var.name))
    error_message = "A name has at most 43 letters, digits, hyphens and underscores."
  }
}

# ---- Which messages

variable "rebalance_recommendations" {
  description = "Whether rebalance recommendations are sent to the queue. Say false where the daemon runs with --rebalance=ignore."
  type        = bool
  default     = true
}

variable "scheduled_events" {
  description = "Whether maintenance, reboots and retirements that AWS Health announces for instances are sent to the queue."
  type        = bool
  default     = true
}

variable "state_changes" {
  description = "Whether the queue is told of instances that stop or shut down, and have stopped or terminated, for whatever reason."
  type        = bool
  default     = true
}

variable "terminate_hooks" {
  description = "Whether lifecycle hooks of Auto Scaling groups for instances that they terminate are sent to the queue. Say false where groups send them there themselves."
  type        = bool
  default     = true
}

variable "launch_hooks" {
  description = "Whether lifecycle hooks of Auto Scaling groups for instances that they launch are sent to the queue, to be completed when the Node is Ready. Say true only where nobody else completes them."
  type        = bool
  default     = false
}

# ---- Queue

variable "message_retention_seconds" {
  description = "How long a message is kept, and how long EventBridge tries to deliver it. A notice of two minutes is worth nothing after five."
  type        = number
  default     = 300

  validation {
    # From what a message that cannot be read takes to the dead-letter queue, to what
    # EventBridge can try.
    condition     = var.message_retention_seconds >= 180 && var.message_retention_seconds <= 86400
    error_message = "Messages are kept for 180 to 86400 seconds."
  }
}

variable "kms_key_arn" {
  description = "ARN of a customer managed KMS key for both queues. Its key policy must let events.amazonaws.com use it, see deploy/aws.md. Without it the key that SQS manages."
  type        = string
  default     = null
}

variable "alarm_topic_arn" {
  description = "ARN of an SNS topic that is told of dead letters, and of a queue that nobody reads. Without it no alarms."
  type        = string
  default     = null
}

# ---- Who reads the queue

variable "credentials" {
  description = "How the pods get the role: pod-identity or irsa. With none there is only the policy, for you to attach."
  type        = string
  default     = "pod-identity"

  validation {
    condition     = contains(["pod-identity", "irsa", "none"], var.credentials)
    error_message = "Credentials come by pod-identity, irsa or none."
  }
}

variable "oidc_provider" {
  description = "Only with credentials = \"irsa\": the cluster's OIDC issuer without https://, such as oidc.eks.eu-west-1.amazonaws.com/id/0123456789ABCDEF0123456789ABCDEF. IAM has to know it as a provider."
  type        = string
  default     = ""

  validation {
    condition     = !can(regex("://|:", var.oidc_provider))
    error_message = "The issuer is given without https:// and not as an ARN."
  }
}

variable "namespace" {
  description = "Namespace of the ServiceAccount."
  type        = string
  default     = "spot-handler"
}

variable "service_account" {
  description = "The ServiceAccount that may have the role, and no other."
  type        = string
  default     = "spot-handler-queue"
}

variable "permissions_boundary_arn" {
  description = "ARN of a policy that bounds the role, where your account demands one."
  type        = string
  default     = null
}

variable "instance_tags" {
  description = "Whether the role may read the tags of instances: for --managed-tag."
  type        = bool
  default     = false
}

# ---- Nodes of Auto Scaling groups

variable "auto_scaling_groups" {
  description = "Whether the role may have nodes of Auto Scaling groups replaced: detach an instance, which makes the group launch another, and terminate it when it is drained; and answer their lifecycle hooks. Karpenter needs none of this."
  type        = bool
  default     = false
}

variable "tag_key" {
  description = "Key of the tag that groups and instances must have for that. Without it kubernetes.io/cluster/<cluster_name>, which EKS demands of nodes and eksctl and managed node groups set."
  type        = string
  default     = null
}

variable "tag_value" {
  description = "Value of that tag."
  type        = string
  default     = "owned"
}

variable "tags" {
  description = "Tags for everything that can have them."
  type        = map(string)
  default     = {}
}
