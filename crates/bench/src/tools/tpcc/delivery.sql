-- TPC-C's delivery: the oldest new order of each district of a warehouse. pgbench variables: warehouses.
\set w random(1, :warehouses)
\set carrier random(1, 10)
BEGIN;
-- One delivery of a warehouse at a time, as with one terminal for them.
SELECT pg_advisory_xact_lock(:w);
WITH oldest AS MATERIALIZED (
  SELECT d, (SELECT min(no_o_id) FROM new_orders WHERE no_w_id = :w AND no_d_id = d) AS o FROM generate_series(1, 10) d
), gone AS (
  DELETE FROM new_orders USING oldest WHERE no_w_id = :w AND no_d_id = d AND no_o_id = o RETURNING d, o
), carried AS (
  UPDATE orders SET o_carrier_id = :carrier FROM gone WHERE o_w_id = :w AND o_d_id = d AND o_id = o RETURNING d, o_c_id
), delivered AS (
  UPDATE order_line SET ol_delivery_d = now() FROM gone WHERE ol_w_id = :w AND ol_d_id = d AND ol_o_id = o RETURNING d, ol_amount
), paid AS (SELECT d, sum(ol_amount) AS amount FROM delivered GROUP BY d)
UPDATE customer SET c_balance = c_balance + amount, c_delivery_cnt = c_delivery_cnt + 1
FROM carried JOIN paid USING (d) WHERE c_w_id = :w AND c_d_id = d AND c_id = o_c_id;
END;
