resource "aws_cloudwatch_metric_alarm" "dead_letters" {
  count = var.alarm_topic_arn == null ? 0 : 1

  alarm_name          = "${local.name}-dead-letters"
  alarm_description   = "Messages for spot-handler in cluster ${var.cluster_name} could not be read or delivered: see the queue ${local.name}-dead-letters"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.dead_letters.name }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = [var.alarm_topic_arn]
  ok_actions          = [var.alarm_topic_arn]
  tags                = var.tags
}

resource "aws_cloudwatch_metric_alarm" "not_read" {
  count = var.alarm_topic_arn == null ? 0 : 1

  alarm_name          = "${local.name}-not-read"
  alarm_description   = "Messages for spot-handler in cluster ${var.cluster_name} wait for more than a minute: does it run, may it read its queue?"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateAgeOfOldestMessage"
  dimensions          = { QueueName = aws_sqs_queue.queue.name }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 2
  comparison_operator = "GreaterThanThreshold"
  threshold           = 60
  treat_missing_data  = "notBreaching"
  alarm_actions       = [var.alarm_topic_arn]
  ok_actions          = [var.alarm_topic_arn]
  tags                = var.tags
}
