-- TPC-C's payment: six customers of ten are told by their names, one in ten has a bad credit. pgbench variables: warehouses.
\set w random(1, :warehouses)
\set d random(1, 10)
\set c 1 + (random(0, 1023) | random(1, 3000)) % 3000
\set name (random(0, 255) | random(0, 999)) % 1000
\set by_name random(1, 100) <= 60
\set amount random(100, 500000)
BEGIN;
UPDATE warehouse SET w_ytd = w_ytd + :amount / 100.0 WHERE w_id = :w;
UPDATE district SET d_ytd = d_ytd + :amount / 100.0 WHERE d_w_id = :w AND d_id = :d;
\if :by_name
SELECT (array_agg(c_id ORDER BY c_first))[count(*) / 2 + 1] AS c FROM customer WHERE c_w_id = :w AND c_d_id = :d AND c_last = tpcc_last_name(:name) \gset
\endif
UPDATE customer SET c_balance = c_balance - :amount / 100.0, c_ytd_payment = c_ytd_payment + :amount / 100.0,
  c_payment_cnt = c_payment_cnt + 1,
  c_data = CASE WHEN c_credit = 'BC' THEN left(concat_ws(' ', c_id, c_d_id, c_w_id, :d::int, :w::int, :amount::int, c_data), 500) ELSE c_data END
WHERE c_w_id = :w AND c_d_id = :d AND c_id = :c;
INSERT INTO history VALUES (:c, :d, :w, :d, :w, now(), :amount / 100.0, tpcc_text(12, 24));
END;
